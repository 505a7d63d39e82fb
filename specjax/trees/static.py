"""A static tree is fixed before decoding and written as a list of rank paths.

A path (0, 2) is the third-best guess for depth 2 below the best guess for depth 1: the form in
which Medusa's `medusa_choices` are published (arXiv 2401.10774, section 2.3.3).

Letters: B batch, N nodes, D depth, W nodes of one level, R ranks.
"""

import dataclasses
import functools
import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft, Proposal
from specjax.distributed import top_k
from specjax.trees.base import Guesser
from specjax.trees.structure import gather, take_rows

Choices = Sequence[Sequence[int]]


def as_tuples(choices: Choices) -> tuple[tuple[int, ...], ...]:
  """Rank paths, such as lists that were read from a file, as a hashable value."""
  return tuple(tuple(int(rank) for rank in path) for path in choices)


class StaticShape(NamedTuple):
  """A tree of N nodes, the root first, then by (depth, path).

  Attributes:
    parent, depth: i32[N].
    rank: i32[N], which guess of its depth a node is, 0 the best; 0 for the root.
  """

  parent: np.ndarray
  depth: np.ndarray
  rank: np.ndarray


def from_choices(choices: Choices) -> StaticShape:
  """The tree of `choices`, the root added.

  Raises:
    ValueError: a path that is empty, repeated, negative, or whose parent is not listed.
  """
  paths = sorted((tuple(path) for path in choices), key=lambda path: (len(path), path))
  number: dict[tuple[int, ...], int] = {(): 0}
  for path in paths:
    if not path or min(path) < 0:
      raise ValueError(
        f"`choices` must be paths of one or more ranks of at least 0, got {list(path)}."
      )
    if path in number:
      raise ValueError(f"choices has the path {list(path)} twice.")
    if path[:-1] not in number:
      raise ValueError(f"choices has the path {list(path)} but not its parent {list(path[:-1])}.")
    number[path] = len(number)
  nodes: list[tuple[int, ...]] = [(), *paths]
  return StaticShape(
    parent=np.array([number[path[:-1]] for path in nodes], np.int32),
    depth=np.array([len(path) for path in nodes], np.int32),
    rank=np.array([path[-1] if path else 0 for path in nodes], np.int32),
  )


class Level(NamedTuple):
  """The nodes of one depth that have children, and these children.

  Attributes:
    inner: i[W], numbers of the nodes with children.
    children: i[C], numbers of the children, in rising order.
    above: i[W], the place of each inner node's parent among the inner nodes of the level before.
    mask: bool[W, M], which of the M nodes expanded so far a node is or hangs below.
  """

  inner: np.ndarray
  children: np.ndarray
  above: np.ndarray
  mask: np.ndarray


def levels(shape: StaticShape) -> Iterator[Level]:
  """The D levels that are expanded, from the root on."""
  N = len(shape.parent)
  closure = np.eye(N, dtype=bool)
  for node in range(1, N):
    closure[node] |= closure[shape.parent[node]]
  expanded = before = np.zeros(0, int)
  for depth in range(1, int(shape.depth.max()) + 1):
    children = np.flatnonzero(shape.depth == depth)
    inner = np.unique(shape.parent[children])
    expanded = np.concatenate([expanded, inner])
    above = np.searchsorted(before, shape.parent[inner])
    yield Level(inner, children, above, closure[np.ix_(inner, expanded)])
    before = inner


def rows_of(index: Any, batch: int) -> Array:
  """i32[B, ..]: a static index, the same for each of B rows."""
  return jnp.broadcast_to(jnp.asarray(index, jnp.int32), (batch, *np.shape(index)))


def ask_level(guesser: Guesser, depth: int, level: Level, tokens: Array) -> tuple[Array, Guesser]:
  """`Guesser.ask` at the inner nodes of a level, from the tokens of all nodes so far."""
  B = len(tokens)
  if depth:
    guesser = guesser._replace(carry=take_rows(guesser.carry, rows_of(level.above, B)))
  seen = jnp.broadcast_to(level.mask, (B, *level.mask.shape))
  return guesser.ask(depth, gather(tokens, rows_of(level.inner, B)), seen)


@dataclasses.dataclass(frozen=True)
class Static:
  """A fixed shape with the best guesses in it.

  It was measured as `static-4-2-1`: the 4, then 2, then 1 best.

  Measured: 3.65 tokens per pass (trees)

  Attributes:
    choices: rank paths; without any, decoding is plain.
  """

  choices: Choices

  def __post_init__(self) -> None:
    object.__setattr__(self, "choices", as_tuples(self.choices))
    _ = self.shape  # a malformed list is refused here

  @functools.cached_property
  def shape(self) -> StaticShape:
    return from_choices(self.choices)

  @property
  def nodes(self) -> int:
    return len(self.shape.parent)

  @property
  def depth(self) -> int:
    return int(self.shape.depth.max())

  @property
  def proposal(self) -> Proposal:
    return "deterministic"

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    shape, B, tokens = self.shape, root.shape[0], root
    for depth, level in enumerate(levels(shape)):
      logits, guesser = ask_level(guesser, depth, level, tokens)
      inner, children = level.inner, level.children
      width = int(shape.rank[children].max()) + 1
      if width > logits.shape[-1]:
        raise ValueError(f"tree has rank {width - 1}: the head guesses among {logits.shape[-1]}.")
      guesses = guesser.named(top_k(logits, width)[1]).reshape(B, -1)
      row = np.searchsorted(inner, shape.parent[children]) * (logits.shape[1] > 1)
      chosen = gather(guesses, rows_of(row * width + shape.rank[children], B))
      tokens = jnp.concatenate([tokens, chosen], 1)
    valid = jnp.ones(tokens.shape, bool)
    return Draft(tokens, rows_of(shape.parent, B), rows_of(shape.depth, B), valid)


def k_config(widths: Sequence[int]) -> list[list[int]]:
  """The tree in which every node of depth d has widths[d] children.

  Raises:
    ValueError: no width, or one below 1.
  """
  if not widths or min(widths) < 1:
    raise ValueError(f"`widths` must be one or more numbers of at least 1, got {list(widths)}.")
  paths: list[tuple[int, ...]] = [()]
  choices: list[list[int]] = []
  for width in widths:
    paths = [(*path, rank) for path in paths for rank in range(width)]
    choices += map(list, paths)
  return choices


def best_first(hit_rates: np.ndarray, nodes: int) -> list[list[int]]:
  """The tree of `nodes` nodes, root included, with the most expected accepted tokens.

  The likeliest node is added again and again. The probability of a path is taken to be the product
  of its hit rates, the independence assumption of Medusa's tree search. The list is in order of
  addition, so its first n - 1 entries are the best tree of n nodes.

  Args:
    hit_rates: f[D, R], how often rank r of depth d + 1 is right given that its parent is.
  """
  if hit_rates.ndim != 2 or not hit_rates.size or nodes < 1:
    raise ValueError(
      f"`nodes` must be at least 1 and `hit_rates` a [depth, rank] table, got {nodes} and the "
      f"shape {hit_rates.shape}."
    )
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
