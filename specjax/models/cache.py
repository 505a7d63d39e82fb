"""The key/value cache: allocation and the only write."""

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache


def allocate(fresh: KV, length: Array, capacity: int) -> Cache:
  """A cache of `capacity` rows that starts with the rows of `fresh`.

  Args:
    fresh: arrays [B, K, T, C] with T <= capacity.
    length: i32[B], how many of the T rows are valid.
    capacity: S.
  """

  def grow(x: Array) -> Array:
    return jnp.pad(x, ((0, 0), (0, 0), (0, capacity - x.shape[2]), (0, 0)))

  return Cache(KV(tuple(map(grow, fresh.k)), tuple(map(grow, fresh.v))), length)


def commit(cache: Cache, kv: KV, path: Array, rows: Array) -> Cache:
  """Appends the first `rows[b]` nodes of `path[b]` to row b of the cache.

  The window written is always A rows wide (static shape); what lies past `rows` is garbage that
  the next window overwrites. It is gathered from the fresh keys and values, never from the cache,
  and written row by row: both keep XLA from copying the cache. The caller keeps
  length + A <= S, so that the window never clamps.

  Args:
    cache: arrays [B, K, S, C].
    kv: fresh arrays [B, K, N, C].
    path: i32[B, A].
    rows: i32[B], 0..A.
  """

  # rows is never negative: this adds nothing, but makes the write wait for the verdict and so for
  # every read of the cache. Where path folds to a constant XLA would copy the whole cache.
  start_row = cache.length + jnp.minimum(rows, 0)

  def write(buffer: Array, fresh: Array) -> Array:
    window = jnp.take_along_axis(fresh, path[:, None, :, None], axis=2).astype(buffer.dtype)
    for b in range(buffer.shape[0]):
      start = (b, 0, start_row[b], 0)
      buffer = lax.dynamic_update_slice(buffer, window[b : b + 1], start)
    return buffer

  k = tuple(write(*pair) for pair in zip(cache.kv.k, kv.k, strict=True))
  v = tuple(write(*pair) for pair in zip(cache.kv.v, kv.v, strict=True))
  return Cache(KV(k, v), cache.length + rows)
