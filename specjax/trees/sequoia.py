"""The best tree of a given size when children are drawn one after the other.

Letters: N nodes, D depth, R ranks.
"""

from collections.abc import Sequence

import numpy as np


def sequoia(acceptance: Sequence[float] | np.ndarray, nodes: int, depth: int) -> list[list[int]]:
  """Rank paths with the most expected accepted tokens, by Sequoia's dynamic program.

  Chen et al. 2024 (arXiv 2402.12374, section 4.1). A node with b children has those of ranks
  0..b - 1. Whether a child is accepted is assumed to depend on its rank alone, which is fair for a
  draft model; for heads that get worse with depth use `static.best_first` with a rate per depth.
  Where `acceptance` does not rise with the rank both find trees of the same expected length; where
  it does, only this program knows that a child needs all its elder siblings.

  Args:
    acceptance: f[R], how often the child of each rank is the one accepted, of all visits to a node
      with R children (so they sum to 1 at most).
    nodes: N at most, the root included; less where R and D leave no room.
    depth: D at most.

  Raises:
    ValueError: no rank, rates that are not such rates, or numbers below 1.
  """
  rates = np.asarray(acceptance, np.float64)
  if rates.ndim != 1 or not rates.size or (rates < 0).any() or rates.sum() > 1 + 1e-6:
    raise ValueError(
      "`acceptance` must be one or more rates of at least 0 whose sum is at most 1, got "
      f"{rates.tolist()}."
    )
  if nodes < 1 or depth < 1:
    raise ValueError(f"`nodes` and `depth` must be at least 1, got {nodes} and {depth}.")
  R, D = len(rates), depth
  # best[l, m]: expected tokens, the root's own included, of the best tree of m nodes and l levels;
  # split[l, b, m]: nodes below the last of its root's b children.
  best = np.full((D + 1, nodes + 1), -np.inf)
  best[:, 1] = 1.0
  split = np.zeros((D + 1, R + 1, nodes + 1), int)
  children = np.zeros((D + 1, nodes + 1), int)
  for level in range(1, D + 1):
    of = np.full((R + 1, nodes + 1), -np.inf)
    of[0, 1] = 1.0
    for b in range(1, R + 1):
      for m in range(2, nodes + 1):
        below = np.arange(1, m)
        under, none = best[level - 1, below], np.full(m - 1, -np.inf)
        # A size that no tree has stays -inf also where the rate is 0.
        gain = np.multiply(rates[b - 1], under, out=none, where=np.isfinite(under))
        values = of[b - 1, m - below] + gain
        split[level, b, m] = below[np.argmax(values)]
        of[b, m] = values.max()
    best[level], children[level] = of.max(0), of.argmax(0)
  size = int(np.flatnonzero(np.isfinite(best[D]))[-1])
  return sorted(_paths(size, D, (), split, children), key=lambda path: (len(path), path))


def _paths(
  size: int, level: int, above: tuple[int, ...], split: np.ndarray, children: np.ndarray
) -> list[list[int]]:
  """All nodes below the one at `above`, which has `size` nodes and `level` levels."""
  paths: list[list[int]] = []
  for rank in range(int(children[level, size]), 0, -1):
    below = int(split[level, rank, size])
    path = (*above, rank - 1)
    paths += [list(path), *_paths(below, level - 1, path, split, children)]
    size -= below
  return paths
