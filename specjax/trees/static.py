"""Trees fixed before decoding, written as lists of rank paths.

A path (0, 2) is the third-best guess for depth 2 below the best guess for depth 1: the form in
which Medusa's `medusa_choices` are published (arXiv 2401.10774, section 2.3.3).
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Choices = Sequence[Sequence[int]]


class StaticTree(NamedTuple):
  """A tree of N nodes, the root first, then by (depth, path).

  Attributes:
    parent, depth: i32[N].
    rank: i32[N], which guess of its depth a node is, 0 the best; 0 for the root.
  """

  parent: np.ndarray
  depth: np.ndarray
  rank: np.ndarray


def from_choices(choices: Choices) -> StaticTree:
  """The tree of `choices`, the root added.

  Raises:
    ValueError: a path that is empty, repeated, negative, or whose parent is not listed.
  """
  paths = sorted((tuple(path) for path in choices), key=lambda path: (len(path), path))
  number: dict[tuple[int, ...], int] = {(): 0}
  for path in paths:
    if not path or min(path) < 0:
      raise ValueError(f"choices has the path {list(path)}: ranks must be 0 or more, one at least.")
    if path in number:
      raise ValueError(f"choices has the path {list(path)} twice.")
    if path[:-1] not in number:
      raise ValueError(f"choices has the path {list(path)} but not its parent {list(path[:-1])}.")
    number[path] = len(number)
  nodes: list[tuple[int, ...]] = [(), *paths]
  return StaticTree(
    parent=np.array([number[path[:-1]] for path in nodes], np.int32),
    depth=np.array([len(path) for path in nodes], np.int32),
    rank=np.array([path[-1] if path else 0 for path in nodes], np.int32),
  )


def k_config(widths: Sequence[int]) -> list[list[int]]:
  """The tree in which every node of depth d has widths[d] children.

  Raises:
    ValueError: no width, or one below 1.
  """
  if not widths or min(widths) < 1:
    raise ValueError(f"widths={list(widths)}: accepted are numbers of 1 or more, one at least.")
  paths: list[tuple[int, ...]] = [()]
  choices: list[list[int]] = []
  for width in widths:
    paths = [(*path, rank) for path in paths for rank in range(width)]
    choices += map(list, paths)
  return choices


def best_first(hit_rates: np.ndarray, nodes: int) -> list[list[int]]:
  """The tree of `nodes` nodes, root included, that expects the most accepted tokens.

  Adds the likeliest node again and again, a path being as likely as the product of its hit
  rates (the independence assumption of Medusa's tree search). The list is in order of addition,
  so its first n - 1 entries are the best tree of n nodes.

  Args:
    hit_rates: f[D, R], how often rank r of depth d + 1 is right given that its parent is.
  """
  if hit_rates.ndim != 2 or not hit_rates.size or nodes < 1:
    raise ValueError(f"nodes={nodes}, hit_rates of shape {hit_rates.shape}: expected nodes >= 1 "
                     "and a [depth, rank] table.")  # fmt: skip
  frontier: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
  chosen: list[list[int]] = []
  while frontier and len(chosen) < nodes:
    score, path = heapq.heappop(frontier)
    chosen.append(list(path))
    if len(path) < len(hit_rates):
      for rank, rate in enumerate(hit_rates[len(path)].tolist()):
        heapq.heappush(frontier, (score * rate, (*path, rank)))
  return chosen[1:]


def expected_length(choices: Choices, hit_rates: np.ndarray) -> float:
  """Expected accepted draft tokens of a tree under the assumption of `best_first`."""
  return float(sum(np.prod([hit_rates[d, r] for d, r in enumerate(path)]) for path in choices))
