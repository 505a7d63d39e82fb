"""The draft with the most expected tokens per second, out of chains and trees of all sizes.

The idea is Sequoia's hardware-aware choice of a tree (Chen et al. 2024, arXiv 2402.12374). A round
takes v(N) + d seconds, v(N) of the target over N nodes and d of the drafter, and adds 1 + E tokens
to each row of a batch. `trees.static.expected_length` gives E, the expected accepted tokens.

Letters: B batch, N tree nodes, D depth, R ranks.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specjax.eval import metrics
from specjax.trees.static import as_tuples, best_first, expected_length

NODES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
PLAIN = "plain"
Paths = tuple[tuple[int, ...], ...]


class Candidate(NamedTuple):
  """A draft that could be made in every round.

  Attributes:
    name: "plain", "chain D" or "tree N".
    tree: rank paths; () for plain decoding.
    accepted: E.
  """

  name: str
  tree: Paths
  accepted: float

  @property
  def nodes(self) -> int:
    return len(self.tree) + 1


def candidates(rates: np.ndarray, tree: Callable[[int], Sequence] | None = None) -> list[Candidate]:
  """Plain decoding, chains of all depths, and trees of NODES, as the rates f[D, R] allow.

  `tree` gives the best tree of a number of nodes, by default that of `trees.static.best_first`.
  """
  whole = best_first(rates, max(NODES))
  best = tree or (lambda nodes: whole[: nodes - 1])
  guess = [0] * len(rates) if tree else rates.argmax(1).tolist()
  found: dict[str, Paths] = {PLAIN: ()}
  for depth in range(1, len(guess) + 1):
    found[f"chain {depth}"] = as_tuples([guess[:d] for d in range(1, depth + 1)])
  for nodes in NODES:
    choices = as_tuples(best(nodes))
    if len(choices) + 1 == nodes and set(choices) not in map(set, found.values()):
      found[f"tree {nodes}"] = choices
  return [Candidate(k, t, expected_length(t, rates)) for k, t in found.items()]


def expected(candidate: Candidate, seconds: float, batch: int) -> float:
  """Tokens per second of all rows in rounds of `seconds`."""
  return metrics.tokens_per_second(batch * (1 + candidate.accepted), seconds)


def choose(options: Sequence[Candidate], seconds: Sequence[float], batch: int = 1) -> Candidate:
  """The candidate that expects the most tokens per second in rounds of `seconds`."""
  rates = [expected(c, s, batch) for c, s in zip(options, seconds, strict=True)]
  return options[int(np.argmax(rates))]
