"""Drawn trees can have another shape each round: a level keeps the most promising of its draws.

What decides whether a draw is kept must be known before its token is (or, for stochastic beams,
must be independent of it given the draws before): looking first and keeping then is biased under
any rule that uses q.

Letters: B batch, N nodes, D depth, W nodes kept per level, K children of a node, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft
from specjax.trees.base import NEVER, Guesser
from specjax.trees.structure import at


def level_sizes(width: int, depth: int, children: int) -> list[int]:
  """Nodes of every level below the root: `width` at most, and `children` of each node above."""
  sizes = [1]
  for _ in range(depth):
    sizes.append(min(width, sizes[-1] * children))
  return sizes[1:]


class Expansion(NamedTuple):
  """The children of one level's nodes, [B, W, K].

  Attributes:
    tokens: i32, in the order of drawing.
    key: f32, by which W of the level are kept; falls from sibling to sibling, -inf for none.
    values: pytree, what the kept ones hand on to their own expansion.
  """

  tokens: Array
  key: Array
  values: Any


class Expand(Protocol):
  """The children of a level, from its nodes' log_probs f32[B, W, V] and their values [B, W]."""

  def __call__(self, level: int, log_probs: Array, values: Any, /) -> Expansion: ...


def draw_levels(tree: Any, expand: Expand, values: Any, root: Array, guesser: Guesser) -> Draft:
  """N = 1 + sum(level_sizes) nodes, level by level; what a level leaves over is not valid.

  Args:
    tree: `trees.base.Tree` whose field `width` is W (static).
    expand, values: how children come about, and the root's values.
    root, guesser: see `trees.base.Tree.fill`.
  """
  B, sampling = root.shape[0], guesser.drawing(tree)
  tokens, above = root, jnp.ones((B, 1, 1), bool)
  live = jnp.ones((B, 1), bool)
  values = jax.tree.map(lambda x: jnp.full((B, 1), x, jnp.float32), values)
  parts: list[tuple[Array, ...]] = []  # tokens, parents, valid, distributions of each level
  first = 0  # number of the level's first node
  for level in range(tree.depth):
    logits, guesser = guesser.ask(level, tokens, above)
    W = tokens.shape[1]
    log_probs = guesser.distribution(logits, W, sampling)
    children = expand(level, log_probs, values)
    K = children.tokens.shape[2]
    key = jnp.where(live[..., None], children.key, NEVER).reshape(B, W * K)
    kept = jnp.sort(jax.lax.top_k(key, min(tree.width, W * K))[1], 1)  # siblings stay in order
    flat = jax.tree.map(lambda x: x.reshape(B, -1), (children.tokens, children.values))
    tokens, values = jax.tree.map(lambda x: at(x, kept), flat)  # noqa: B023
    live = at(key, kept) > NEVER
    above_row = kept // K
    parts.append((tokens, first + above_row, live, log_probs))
    guesser, above = guesser.below(above_row, above)
    first += W
  depths = np.repeat(np.arange(1, tree.depth + 1), [p[0].shape[1] for p in parts])
  N, V = 1 + len(depths), parts[0][3].shape[-1]
  distributions = jnp.concatenate([p[3] for p in parts], 1)
  leaves = jnp.full((B, N - distributions.shape[1], V), NEVER)
  top = jnp.zeros((B, 1), jnp.int32)
  return Draft(
    jnp.concatenate([root, *(p[0] for p in parts)], 1),
    jnp.concatenate([top, *(p[1].astype(jnp.int32) for p in parts)], 1),
    jnp.broadcast_to(jnp.asarray([0, *depths], jnp.int32), (B, N)),
    jnp.concatenate([jnp.ones((B, 1), bool), *(p[2] for p in parts)], 1),
    jnp.concatenate([distributions, leaves], 1),
  )
