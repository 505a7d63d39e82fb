"""A draft tree of the prefixes that most of several copied texts share.

Letters: B batch, C groups, D depth, K texts, N nodes.
"""

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft
from specjax.trees.structure import below, gather


def tree_of(
  rows: Array, root: Array, nodes: int, weight: Array, most: Array
) -> tuple[Draft, Array]:
  """The commonest prefixes of the group of texts that expects most of its own.

  A prefix is as likely as its share of the group's texts; the sum over those drafted is how many
  tokens are expected. Of equal groups the first drafts; equal prefixes have the order of the texts.

  Args:
    rows: i32[B, K, D], the texts; each ends at its first negative token.
    root: i32[B, 1].
    nodes: N, with the root.
    weight: f32[B, C, K], whole numbers, as how many texts each counts in each group.
    most: i32[C], how many prefixes a group drafts, fewer than N.

  Returns:
    (the draft, f32[B] expected tokens).
  """
  B, K, D = rows.shape
  tokens = rows.swapaxes(1, 2)  # [B, D, K]
  equal = (tokens[..., None] == tokens[:, :, None]) & (tokens >= 0)[..., None]
  same = jnp.cumprod(equal, 1, dtype=jnp.int32) > 0  # [B, D, K, K], prefixes to this depth
  first = jnp.argmax(same, 3).astype(jnp.int32)  # [B, D, K], the first text with this prefix
  own = same.any(3) & (first == jnp.arange(K, dtype=jnp.int32)[None, None])
  count = jnp.einsum("bdik,bck->bcdi", same.astype(jnp.float32), weight)
  depth = jnp.arange(D, dtype=jnp.float32)[None, None, :, None]
  score = jnp.where(own[:, None] & (count > 0), count * (D + 1) - depth, 0)  # parents above
  best, index = jax.lax.top_k(score.reshape(B, -1, D * K), min(nodes - 1, D * K))
  rank = jnp.arange(best.shape[2], dtype=jnp.int32)[None, None]
  best = jnp.where(rank < most[None, :, None], best, 0)
  expected = jnp.ceil(best / (D + 1)).sum(2) / jnp.maximum(weight.sum(2), 1)  # of the counts
  group = jnp.argmax(expected, 1)[:, None]
  best, index = (jnp.take_along_axis(x, group[..., None], 1)[:, 0] for x in (best, index))
  index = jnp.sort(jnp.where(best > 0, index, D * K), 1).astype(jnp.int32)  # parents first
  valid = index < D * K
  index = jnp.where(valid, index, 0)
  step = jnp.where(valid, index // K + 1, 0)
  # A prefix stands at the first text that has it, and so does the one above.
  above = gather(first.reshape(B, D * K), jnp.maximum(index - K, 0)) + (step - 2) * K
  is_parent = (index[:, None] == above[:, :, None]) & valid[:, None] & (step > 1)[:, :, None]
  parent = jnp.where(is_parent.any(2), jnp.argmax(is_parent, 2).astype(jnp.int32) + 1, 0)
  chosen = jnp.where(valid, gather(tokens.reshape(B, D * K), index), 0)
  return below(root, chosen, parent, step, valid), gather(expected, group)[:, 0]
