"""Tree attention for any backend: the prefix in blocks, as many as there is text.

Letters: B batch, H query heads, K key/value heads, R = N H / K rows that share a head's keys, N
nodes, S cache capacity, C width of a head.
"""

import jax
import jax.numpy as jnp
from jax import Array

from specjax.kernels.tree_attention.reference import Result


def tree_attention(
  q: Array, k_cache: Array, v_cache: Array, visible: Array, k_tree: Array, v_tree: Array,
  tree_mask: Array, scale: float, *, block: int,
) -> Result:  # fmt: skip
  """See `reference`; blocks past the last visible row of the batch are not read.

  Rows do not depend on how long their neighbours are: a block in which a row sees nothing changes
  no bit of it.

  Args:
    block: cached rows per step (static).
  """
  B, H, N, C = q.shape
  K, S = k_cache.shape[1:3]
  G, size = H // K, min(block, S)
  rows = (q * jnp.asarray(scale, q.dtype)).reshape(B, K, G * N, C)

  def scores(keys: Array) -> Array:
    return jnp.einsum("bkrc,bksc->bkrs", rows, keys, preferred_element_type=jnp.float32)

  def mix(weight: Array, values: Array) -> Array:
    weight = weight.astype(values.dtype)
    return jnp.einsum("bkrs,bksc->bkrc", weight, values, preferred_element_type=jnp.float32)

  def join(carry, score: Array, values: Array):
    """The softmax so far, with more keys; `score` is -inf where they are not seen."""
    out, top, total = carry
    best = jnp.maximum(top, score.max(-1))
    base = jnp.where(jnp.isfinite(best), best, 0)[..., None]
    weight, old = jnp.exp(score - base), jnp.exp(top - base[..., 0])
    return (
      out * old[..., None] + mix(weight, values), best, total * old + weight.sum(-1),
    )  # fmt: skip

  mask = jnp.broadcast_to(tree_mask[:, None, None], (B, 1, G, N, N)).reshape(B, 1, G * N, N)
  nothing = (
    jnp.zeros((B, K, G * N, C)), jnp.full((B, K, G * N), -jnp.inf), jnp.zeros((B, K, G * N)),
  )  # fmt: skip
  carry = join(nothing, jnp.where(mask, scores(k_tree), -jnp.inf), v_tree)

  column = jnp.arange(S, dtype=jnp.int32)
  end = jnp.where(visible, column[None] + 1, 0).max()

  def step(j: Array, carry):
    first = j * size
    start = jnp.minimum(first, S - size)  # the last block reaches back, and skips what was read
    k, v = (jax.lax.dynamic_slice_in_dim(x, start, size, 2) for x in (k_cache, v_cache))
    seen = jax.lax.dynamic_slice_in_dim(visible, start, size, 1)
    seen = (seen & (start + column[:size] >= first)[None])[:, None, :, None]
    score = jnp.where(seen[..., 0][:, :, None], scores(k), -jnp.inf)
    return join(carry, score, jnp.where(seen, v, 0))  # 0 times NaN is NaN

  out, top, total = jax.lax.fori_loop(0, -(-end // size), step, carry)
  out = out / jnp.where(total > 0, total, 1)[..., None]
  return Result(
    out.reshape(B, H, N, C).astype(q.dtype), top.reshape(B, H, N), total.reshape(B, H, N)
  )
