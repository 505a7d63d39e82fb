"""Trees grown from a head's guesses: a fixed shape, the nodes it is surest of, its best paths,
walks through a graph of them, or children drawn from its distribution.

A head guesses the children of a node from what it carries there. `grow` asks it level by level and
lays the guesses out as a `Draft`; the same head therefore fills any tree.

Letters: B batch, N nodes, D depth, W nodes of one level, V draft vocabulary, R children of a node,
E width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import Settings, Source, warp
from specjax.trees.drawn import NEVER, Drawn, draw
from specjax.trees.frontier import (
  StochasticBeam,
  Threshold,
  draw_levels,
  level_sizes,
  stochastic,
  threshold,
)
from specjax.trees.graph import Graph, expand, unroll
from specjax.trees.paths import Beam, Step, beam_paths, from_paths, likeliest, search, take_rows
from specjax.trees.static import Choices, StaticTree, from_choices
from specjax.trees.structure import at


class Dynamic(NamedTuple):
  """The shape of EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858, section 4), another each round.

  Attributes:
    nodes: N, the root included.
    depth: D, levels below the root.
    beam: nodes expanded per level, and children of each.
  """

  nodes: int
  depth: int
  beam: int


Tree = tuple[tuple[int, ...], ...] | Dynamic | Beam | Graph | Drawn | StochasticBeam | Threshold
"""Rank paths, see `trees.static`, or another shape; hashable, as what is compiled must be.

The last three are drawn, for rules that know the distribution of every child; the others are chosen."""


class Sampling(NamedTuple):
  """What drawn trees need: how a round draws, and over which ids.

  Attributes:
    settings: by which logits become the distribution q, the target's own.
    noise: what draws.
    vocab_size: V of the target.
  """

  settings: Settings
  noise: Source
  vocab_size: int


def proposal_of(tree: Tree) -> Proposal:
  """How the tokens of a tree come about."""
  if isinstance(tree, Drawn):
    only = all(rank == 0 for path in tree.choices for rank in path)
    return "chain" if only else tree.how
  return "without_replacement" if isinstance(tree, StochasticBeam | Threshold) else "deterministic"


def as_tree(choices: Choices) -> tuple[tuple[int, ...], ...]:
  """Rank paths in any form, lists as they are read from a file, as a `Tree`."""
  return tuple(tuple(int(rank) for rank in path) for path in choices)


def size_of(tree: Tree, deepest: int) -> tuple[int, int]:
  """(N, D) of a tree.

  Args:
    deepest: how far ahead the head guesses.

  Raises:
    ValueError: a malformed list of choices, a searched tree that cannot have its nodes, or a tree
      deeper than `deepest`.
  """
  beam = 1
  if isinstance(tree, Dynamic | Beam | Graph):
    nodes, depth, beam = tree[:3]
  elif isinstance(tree, StochasticBeam | Threshold):
    nodes, depth = 1 + sum(level_sizes(tree)), tree.depth
  else:
    static = from_choices(tree.choices if isinstance(tree, Drawn) else tree)
    nodes, depth = len(static.parent), int(static.depth.max())
  if depth > deepest:
    raise ValueError(f"tree is {depth} deep: the head guesses {deepest} tokens ahead.")
  if isinstance(tree, StochasticBeam | Threshold) and min(tree[:3]) < 1:
    raise ValueError(f"tree={tree}: accepted are numbers of 1 or more.")
  if not isinstance(tree, Dynamic | Beam | Graph):
    return nodes, depth
  if isinstance(tree, Dynamic):
    formula, most = "1 + beam + (depth - 1) * beam**2", 1 + beam + (depth - 1) * beam**2
  elif isinstance(tree, Graph):
    formula, most = "1 + beam + .. + beam**depth", sum(beam**d for d in range(depth + 1))
  else:
    formula, most = "1 + depth * width", 1 + depth * beam
  if min(depth, beam) < 1 or not depth < nodes <= most:
    raise ValueError(f"tree={tree}: accepted are depth and {tree._fields[2]} of 1 or more and more "
                     f"nodes than depth, at most {formula} = {most}.")  # fmt: skip
  return nodes, depth


def grow(
  tree: Tree,
  root: Array,
  step: Step,
  carry: Any,
  memory: Any = (),
  ids: Array | None = None,
  sampling: Sampling | None = None,
) -> Draft:
  """Fills `tree` with a head's best guesses, valid siblings distinct, or with draws from its distribution.

  Args:
    tree: static.
    root: i32[B, 1], the newest committed token.
    step: the head.
    carry: pytree of [B, 1, ...], at the root.
    memory: any pytree, see `Step`.
    ids: i32[V], target ids of a reduced draft vocabulary, or None where they are the target's.
    sampling: of drawn trees; the others do not look at it.

  Raises:
    ValueError: a drawn tree without `sampling`.
  """
  if isinstance(tree, Drawn | StochasticBeam | Threshold):
    return _drawn(tree, root, step, carry, memory, ids, sampling)
  if isinstance(tree, Graph):
    return unroll(tree, expand(tree, root, step, carry, memory, ids), root)

  def fed(level, tokens, *rest):  # the root, and guesses in the target's ids
    if ids is not None and level:
      tokens = jnp.take(ids, tokens, axis=0)
    return step(level, tokens, *rest)

  if isinstance(tree, Dynamic):
    draft = _surest(tree, root, fed, carry, memory)
  elif isinstance(tree, Beam):
    paths = beam_paths(tree.width, tree.depth, root, fed, carry, memory)
    draft = from_paths(paths, root, tree.nodes)
  else:
    draft = _shaped(from_choices(tree), root, fed, carry, memory)
  if ids is None:
    return draft
  mapped = jnp.take(ids, draft.tokens[:, 1:], axis=0)
  return draft._replace(tokens=jnp.concatenate([root, mapped], 1))


def fill(
  tree: Tree,
  root: Array,
  logits: Sequence[Array],
  ids: Array | None = None,
  sampling: Sampling | None = None,
) -> Draft:
  """`grow` for guesses that do not depend on each other: logits f32[B, V] of each depth."""

  def step(level, tokens, carry, memory, mask):
    return logits[level][:, None], carry, memory

  return grow(tree, root, step, (), (), ids, sampling)


def _drawn(
  tree: Drawn | StochasticBeam | Threshold,
  root: Array,
  step: Step,
  carry: Any,
  memory: Any,
  ids: Array | None,
  sampling: Sampling | None,
) -> Draft:
  if sampling is None:
    raise ValueError(f"tree={tree}: drawn trees need sampling, the settings and the noise.")
  settings, noise, V = sampling

  def log_probs_of(logits: Array) -> Array:
    log_probs = warp(logits, settings)
    if ids is None:
      return log_probs
    return jnp.full((*log_probs.shape[:-1], V), NEVER).at[..., ids].set(log_probs)

  if isinstance(tree, Drawn):
    return draw(tree, root, step, log_probs_of, noise, carry, memory)
  if isinstance(tree, StochasticBeam):
    expand, values = stochastic(tree, noise)
  else:
    expand, values = threshold(tree, noise)
  return draw_levels(
    tree.width, tree.depth, root, step, log_probs_of, expand, values, carry, memory
  )


def _shaped(tree: StaticTree, root: Array, step: Step, carry: Any, memory: Any) -> Draft:
  B, N = root.shape[0], len(tree.parent)
  above = np.eye(N, dtype=bool)
  for node in range(1, N):
    above[node] |= above[tree.parent[node]]
  tokens, expanded, before = root, np.zeros(0, int), np.zeros(0, int)
  for level in range(int(tree.depth.max())):
    children = np.flatnonzero(tree.depth == level + 1)
    inner = np.unique(tree.parent[children])
    if level:
      carry = take_rows(carry, _same(np.searchsorted(before, tree.parent[inner]), B))
    expanded, before = np.concatenate([expanded, inner]), inner
    mask = jnp.broadcast_to(above[np.ix_(inner, expanded)], (B, len(inner), len(expanded)))
    logits, carry, memory = step(level, at(tokens, _same(inner, B)), carry, memory, mask)
    width = int(tree.rank[children].max()) + 1
    if width > logits.shape[-1]:
      raise ValueError(f"tree has rank {width - 1}: the head guesses among {logits.shape[-1]}.")
    guesses = jax.lax.top_k(logits, width)[1].astype(jnp.int32)
    row = np.searchsorted(inner, tree.parent[children]) * (logits.shape[1] > 1)
    chosen = at(guesses.reshape(B, -1), _same(row * width + tree.rank[children], B))
    tokens = jnp.concatenate([tokens, chosen], 1)
  return Draft(tokens, _same(tree.parent, B), _same(tree.depth, B), jnp.ones((B, N), bool))


def _same(index: np.ndarray, batch: int) -> Array:
  return jnp.broadcast_to(jnp.asarray(index, jnp.int32), (batch, len(index)))


def _surest(tree: Dynamic, root: Array, step: Step, carry: Any, memory: Any) -> Draft:
  B = root.shape[0]
  parent = jnp.full((B, 1), -1, jnp.int32)  # number in the pool of each expanded node
  pool: list[tuple[Array, Array, Array]] = []  # tokens, scores, parents of each level
  depths = np.zeros(0, int)
  for level in search(tree.beam, tree.depth, root, step, carry, memory):
    size = level.tokens.shape[1]
    pool.append((level.tokens, level.score, jnp.repeat(parent, size // parent.shape[1], 1)))
    parent = len(depths) + level.kept
    depths = np.concatenate([depths, np.full(size, len(pool))])
  tokens, score, parents = (jnp.concatenate(x, 1) for x in zip(*pool, strict=True))
  return likeliest(tree.nodes, root, tokens, score, parents, depths)[0]
