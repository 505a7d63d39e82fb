"""The definition of tree attention: one dense softmax over the prefix and the tree.

Letters: B batch, H query heads, K key/value heads, G = H / K, N nodes, M fresh rows, S cache
capacity, C width of a head.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.kernels.tree_attention.quantised import Cached, dequantise


class Result(NamedTuple):
  """Attention, with the maximum and the sum that merge it with attention over other keys.

  Attributes:
    out: [B, H, N, C], in q's dtype; 0 where a node sees nothing.
    top: f32[B, H, N], the largest score, a sink's included; -inf where a node sees nothing.
    total: f32[B, H, N], the sum of exp(score - top), a sink's included.
  """

  out: Array
  top: Array
  total: Array


def capped(score: Array, cap: float | None) -> Array:
  """cap tanh(score / cap), or `score` where there is no cap."""
  return score if cap is None else cap * jnp.tanh(score / cap)


def tree_attention(
  q: Array,
  k_cache: Cached,
  v_cache: Cached,
  visible: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
  *,
  start: Array | None = None,
  cap: float | None = None,
  sinks: Array | None = None,
) -> Result:
  """Softmax of `scale` q k over what each node sees; see `api.tree_attention` for the arguments.

  `visible` bool[B, S] marks the cached rows that all nodes see; the others may be NaN.
  """
  B, H, N, C = q.shape
  K = k_tree.shape[1]
  rows = q.reshape(B, K, H // K, N, C).astype(jnp.float32)
  seen = visible[:, None, :, None]

  def together(cache: Cached, tree: Array) -> Array:
    cache = jnp.where(seen, dequantise(cache), 0)
    return jnp.concatenate([cache.astype(jnp.float32), tree.astype(jnp.float32)], 2)

  k, v = together(k_cache, k_tree), together(v_cache, v_tree)
  S = visible.shape[1]
  far = jnp.broadcast_to(visible[:, None], (B, N, S))
  if start is not None:
    far = far & (jnp.arange(S, dtype=jnp.int32)[None, None] >= start[:, :, None])
  mask = jnp.concatenate([far, tree_mask], 2)[:, None, None]
  score = capped(jnp.einsum("bkgnc,bksc->bkgns", rows, k) * scale, cap)
  score = jnp.where(mask, score, -jnp.inf)
  top = score.max(-1)
  sink = None if sinks is None else sinks.astype(jnp.float32).reshape(1, K, H // K, 1)
  if sink is not None:
    top = jnp.maximum(top, sink)
  weight = jnp.where(mask, jnp.exp(score - jnp.where(jnp.isfinite(top), top, 0)[..., None]), 0)
  total = weight.sum(-1)
  if sink is not None:
    total = total + jnp.exp(sink - top)
  out = jnp.einsum("bkgns,bksc->bkgnc", weight, v)
  out = jnp.where(total[..., None] > 0, out / jnp.where(total > 0, total, 1)[..., None], 0)
  return Result(
    out.reshape(B, H, N, C).astype(q.dtype), top.reshape(B, H, N), total.reshape(B, H, N)
  )
