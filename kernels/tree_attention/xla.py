"""Tree attention for any backend: a loop over the blocks of the prefix that hold text.

Letters: those of `reference`, and R = N H / K rows that share a head's keys.
"""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.kernels.platform import platform
from specjax.kernels.tree_attention.paged import PAGE, Paged, side_by_side
from specjax.kernels.tree_attention.quantised import Cached, Quantised
from specjax.kernels.tree_attention.reference import Result, capped

WIDE = 4  # blocks as one: each takes ten microseconds on a CPU, whatever it holds
FEW = 32  # R at most, as many rows have more to do in a block


def tree_attention(
  q: Array,
  k_cache: Cached | Paged,
  v_cache: Cached | Paged,
  visible: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
  *,
  block: int,
  start: Array | None = None,
  cap: float | None = None,
  sinks: Array | None = None,
) -> Result:
  """See `reference`; blocks of `block` (static) rows that no node sees are not read, where they lie
  past the last visible row or before the first `start`. The pages of a block are gathered.

  Texts do not depend on the lengths of their neighbours in the batch: a block of which a text sees
  nothing changes no bit of its result.
  """
  attend = functools.partial(_attend, k_cache, v_cache, scale, block, cap, sinks)
  rows = (q, visible, k_tree, v_tree, tree_mask, start)
  if len(q) == 1 or not _one_by_one():
    return attend(jnp.int32(0), *rows)

  def text(b: Array) -> Result:
    own = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, b, 1), rows)
    return jax.tree.map(lambda x: x[0], attend(b, *own))

  return jax.lax.map(text, jnp.arange(len(q), dtype=jnp.int32))


def _one_by_one() -> bool:
  """Whether texts attend one after another, each over its own length, and not all over the longest.

  Together they keep more cores busy. On two, 8 texts of 512 tokens take as long either way, and
  texts of 40 to 500 tokens a third of the time.
  """
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  return platform() == "cpu" and (cores or 1) <= 2


def _attend(
  k_cache: Cached | Paged,
  v_cache: Cached | Paged,
  scale: float,
  block: int,
  cap: float | None,
  sinks: Array | None,
  at: Array,
  q: Array,
  visible: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  since: Array | None,
) -> Result:
  """`tree_attention` for the texts whose rows in the caches begin at `at`; `since` is `start`."""
  B, H, N, C = q.shape
  (K, M), S = k_tree.shape[1:3], visible.shape[1]
  G, size = H // K, min(block, S)
  rows = (q.astype(jnp.float32) * scale).astype(q.dtype).reshape(B, K, G * N, C)

  def scores(keys: Cached) -> Array:
    if isinstance(keys, Quantised):
      return scores(keys.values.astype(q.dtype)) * keys.scale[:, :, None]
    return jnp.einsum("bkrc,bksc->bkrs", rows, keys, preferred_element_type=jnp.float32)

  def mix(weight: Array, values: Cached) -> Array:
    if isinstance(values, Quantised):
      return mix(weight * values.scale[:, :, None], values.values.astype(q.dtype))
    weight = weight.astype(values.dtype)
    return jnp.einsum("bkrs,bksc->bkrc", weight, values, preferred_element_type=jnp.float32)

  def join(carry, score: Array, values: Cached):
    """Adds keys to the softmax so far; `score` is -inf where they are not seen."""
    out, top, total = carry
    best = jnp.maximum(top, score.max(-1))
    base = jnp.where(jnp.isfinite(best), best, 0)[..., None]
    weight, old = jnp.exp(score - base), jnp.exp(top - base[..., 0])
    return out * old[..., None] + mix(weight, values), best, total * old + weight.sum(-1)

  mask = jnp.broadcast_to(tree_mask[:, None, None], (B, 1, G, N, M)).reshape(B, 1, G * N, M)
  nothing = (
    jnp.zeros((B, K, G * N, C)),
    jnp.full((B, K, G * N), -jnp.inf),
    jnp.zeros((B, K, G * N)),
  )
  if sinks is not None:  # each is a key that all see, with a value of 0
    sink = jnp.repeat(sinks.astype(jnp.float32).reshape(1, K, G), N, 2)
    nothing = nothing[0], jnp.broadcast_to(sink, nothing[1].shape), jnp.ones((B, K, G * N))
  carry = join(nothing, jnp.where(mask, capped(scores(k_tree), cap), -jnp.inf), v_tree)

  column = jnp.arange(S, dtype=jnp.int32)
  end = jnp.where(visible, column[None] + 1, 0).max()
  begin = None  # where the first block begins, if not at 0
  if since is not None:
    begin = jnp.clip(since.min(), 0, end) // size * size
    end = end - begin

  def step(size: int, j: Array, carry):
    first = j * size if begin is None else begin + j * size
    start = jnp.minimum(first, S - size)  # the last block starts earlier, skipping rows it has read

    def cached(x: Any) -> Array:
      if isinstance(x, Paged):
        part = jax.lax.dynamic_slice(x.table, (at, start // PAGE), (B, size // PAGE))
        return side_by_side(x._replace(table=part))
      corner = (at, jnp.int32(0), start, *(jnp.int32(0),) * (x.ndim - 3))
      return jax.lax.dynamic_slice(x, corner, (B, K, size, *x.shape[3:]))

    k, v = jax.tree.map(cached, (k_cache, v_cache), is_leaf=lambda x: isinstance(x, Paged))
    seen = jax.lax.dynamic_slice_in_dim(visible, start, size, 1)
    seen = (seen & (start + column[:size] >= first)[None])[:, None]
    sees = seen[:, :, None]
    if since is not None:
      near = start + column[None, None, :size] >= since[:, :, None]
      near = jnp.broadcast_to(near[:, None, None], (B, 1, G, N, size)).reshape(B, 1, G * N, size)
      sees = sees & near
    score = jnp.where(sees, capped(scores(k), cap), -jnp.inf)
    if isinstance(v, Quantised):  # 0 times NaN is NaN
      v = v._replace(scale=jnp.where(seen, v.scale, 0))
    else:
      v = jnp.where(seen[..., None], v, 0)
    return join(carry, score, v)

  full = jnp.int32(0)
  wide = WIDE * size
  if G * N <= FEW and wide < S and _one_by_one():  # together, neighbours would say what is joined
    full = end // wide
    carry = jax.lax.fori_loop(0, full, functools.partial(step, wide), carry)
  carry = jax.lax.fori_loop(full * WIDE, -(-end // size), functools.partial(step, size), carry)
  out, top, total = carry
  out = out / jnp.where(total > 0, total, 1)[..., None]
  return Result(
    out.reshape(B, H, N, C).astype(q.dtype), top.reshape(B, H, N), total.reshape(B, H, N)
  )
