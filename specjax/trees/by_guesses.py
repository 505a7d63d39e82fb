"""A static tree for each number of tokens that a head guesses ahead.

Letters: B batch, N nodes, D depth.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft, Proposal
from specjax.trees.base import Guesser
from specjax.trees.static import Choices, Static, as_tuples, from_choices
from specjax.trees.structure import gather


class Shapes(NamedTuple):
  """The nodes of T_0..T_D; those with fewer than N have invalid children of the root behind.

  Attributes:
    place: i32[D + 1, N], which node of the tree with all paths each one is.
    parent, depth: i32[D + 1, N].
    valid: bool[D + 1, N].
  """

  place: np.ndarray
  parent: np.ndarray
  depth: np.ndarray
  valid: np.ndarray


@dataclasses.dataclass(frozen=True)
class ByGuesses:
  """Trees T_0..T_D; a text for which the head guesses m tokens ahead gets T_m.

  Attributes:
    trees: rank paths of T_0..T_D, where T_m is m deep at most.
  """

  trees: Sequence[Choices]

  def __post_init__(self) -> None:
    object.__setattr__(self, "trees", tuple(map(as_tuples, self.trees)))
    depths = [max(map(len, tree), default=0) for tree in self.trees]
    if not depths or (np.array(depths) > np.arange(len(depths))).any():
      raise ValueError(f"`trees` must be at most 0, 1, 2, .. deep in turn, got depths {depths}.")
    _ = self.shapes  # malformed paths are refused here

  @functools.cached_property
  def union(self) -> Static:
    """All paths in one tree."""
    return Static(sorted({tuple(path) for tree in self.trees for path in tree}))

  @functools.cached_property
  def shapes(self) -> Shapes:
    every = self.union.shape
    number = {(every.parent[v], every.rank[v]): v for v in range(1, len(every.parent))}
    size = len(self.trees), max(map(len, self.trees)) + 1
    place, parent = np.zeros(size, np.int32), np.zeros(size, np.int32)
    depth, valid = np.ones(size, np.int32), np.zeros(size, bool)
    for m, own in enumerate(map(from_choices, self.trees)):
      n = len(own.parent)
      parent[m, :n], depth[m, :n], valid[m, :n] = own.parent, own.depth, True
      for v in range(1, n):
        place[m, v] = number[place[m, own.parent[v]], own.rank[v]]
    return Shapes(place, parent, depth, valid)

  @property
  def nodes(self) -> int:
    return self.shapes.place.shape[1]

  @property
  def depth(self) -> int:
    return len(self.trees) - 1

  @property
  def proposal(self) -> Proposal:
    return "deterministic"

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    every = self.union.fill(root, guesser)
    known = jnp.full(len(root), self.depth) if guesser.known is None else guesser.known
    place, parent, depth, valid = (jnp.asarray(table)[known] for table in self.shapes)
    return Draft(gather(every.tokens, place), parent, depth, valid)
