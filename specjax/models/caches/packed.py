"""Caches that pack a block of rows once it is full, and keep the newest rows as they are.

Letters: B batch, K key/value heads, S capacity, C head dimension, G blocks, g rows of a block, R
rows of the buffer, A rows of an accepted path.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache
from specjax.models import cache as dense
from specjax.models.caches.base import CacheKind, Prefix

Pack = Callable[[Array, Array], Any]  # keys, values [.., g, C] -> a pytree of arrays [.., any]
Unpack = Callable[[Any, int], tuple[Array, Array]]  # and back, given C


class Packed(NamedTuple):
  """The cache.

  Attributes:
    blocks: a pytree for each layer, arrays [B, K, G, any].
    recent: KV of [B, K, R, C], the rows after the packed ones.
    length: i32[B], rows committed.
  """

  blocks: tuple[Any, ...]
  recent: KV
  length: Array


def packed(name: str, pack: Pack, unpack: Unpack, *, rows: int, recent: int = 0) -> CacheKind:
  """A kind whose blocks of g = `rows` rows are packed when `recent` + g rows have gathered.

  Args:
    recent: rows at least that are kept as they are.
  """

  def packed_rows(length: Array) -> Array:
    return jnp.maximum(length - recent, 0) // rows * rows

  def start(kv: KV, queries: Any, length: Array, capacity: int) -> Packed:
    T = kv.k[0].shape[2]
    total = -(-max(capacity, T) // rows)

    def blocks(k: Array, v: Array) -> Any:
      def whole(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, total * rows - T), (0, 0)))
        return x.reshape(*x.shape[:2], total, rows, x.shape[3])

      return pack(whole(k), whole(v))

    place = packed_rows(length)[:, None] + jnp.arange(recent + 2 * rows, dtype=jnp.int32)[None]
    place = jnp.minimum(place, T - 1)[:, None, :, None]
    newest = jax.tree.map(lambda x: jnp.take_along_axis(x, place, 2), kv)
    return Packed(tuple(map(blocks, kv.k, kv.v)), newest, length)

  def read(cache: Packed, layer: int, q: Array) -> Prefix:
    k, v = unpack(cache.blocks[layer], cache.recent.k[layer].shape[-1])
    k, v = (x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (k, v))
    before = packed_rows(cache.length)[:, None]

    def join(old: Array, new: Array) -> Array:
      return jnp.concatenate([old.astype(new.dtype), new], 2)

    place = jnp.arange(k.shape[2], dtype=jnp.int32)[None]
    newest = jnp.arange(recent + 2 * rows, dtype=jnp.int32)[None]
    seen = jnp.concatenate([place < before, newest < cache.length[:, None] - before], 1)
    return join(k, cache.recent.k[layer]), join(v, cache.recent.v[layer]), seen

  def commit(cache: Packed, kv: KV, queries: Any, path: Array, committed: Array) -> Packed:
    for first in range(0, path.shape[1], rows):  # what the buffer takes at once
      part = jnp.clip(committed - first, 0, rows)
      cache = _append(cache, kv, path[:, first : first + rows], part)
    return cache

  def _append(cache: Packed, kv: KV, path: Array, committed: Array) -> Packed:
    before = packed_rows(cache.length)
    newest = dense.commit(Cache(cache.recent, cache.length - before), kv, path, committed)
    length = cache.length + committed
    full = packed_rows(length) > before

    def move(operand: tuple[tuple[Any, ...], KV]) -> tuple[tuple[Any, ...], KV]:
      blocks, recent_rows = operand

      def write(old: Any, k: Array, v: Array) -> Any:
        fresh = pack(k[:, :, None, :rows], v[:, :, None, :rows])

        def one(old: Array, fresh: Array, index: Array, full: Array) -> Array:
          there = lax.dynamic_index_in_dim(old, index, 1)
          return lax.dynamic_update_index_in_dim(old, jnp.where(full, fresh, there), index, 1)

        return jax.tree.map(
          lambda old, fresh: jax.vmap(one)(old, fresh, before // rows, full), old, fresh
        )

      def shift(x: Array) -> Array:
        moved = jnp.pad(x[:, :, rows:], ((0, 0), (0, 0), (0, rows), (0, 0)))
        return jnp.where(full[:, None, None, None], moved, x)

      return (
        tuple(map(write, blocks, recent_rows.k, recent_rows.v)),
        jax.tree.map(shift, recent_rows),
      )

    blocks, recent_rows = dense.once(full.any(), move, (cache.blocks, newest.kv))
    return Packed(blocks, recent_rows, length)

  return CacheKind(name, start, read, commit)
