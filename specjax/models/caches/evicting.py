"""Caches of a fixed number of rows: a new row takes the place of the one that matters least.

Letters: B batch, H query heads, K key/value heads, S capacity, C head dimension, T prompt rows, W
rows whose queries are known, R rows kept, A rows of an accepted path.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV
from specjax.models.caches.base import CacheKind, Prefix, Queries

# A row's place is its position in the text plus 1; 0 is no row.
# (score f32[B, K, R], place i32[B, K, R], length i32[B]) -> f32[B, K, R]; the lowest go first.
Priority = Callable[[Array, Array, Array], Array]
# (queries [B, H, W, C], their place i32[B, W], keys [B, K, R, C], their place i32[B, K, R], how
# far the text has got f32[B], 0 after the prompt, 1 at the end) -> f32[B, K, R], what scores gain.
Judge = Callable[[Array, Array, Array, Array, Array], Array]


class Kept(NamedTuple):
  """The cache.

  Attributes:
    kv: KV of [B, K, R, C], of which the first are filled, in any order; all heads have as many.
    place: L arrays i32[B, K, R].
    score: L arrays f32[B, K, R]; () where rows are not judged.
    length: i32[B], rows committed.
    prompt: i32[B], rows that were there at the start.
    capacity: i32[B], S.
  """

  kv: KV
  place: tuple[Array, ...]
  score: tuple[Array, ...]
  length: Array
  prompt: Array
  capacity: Array


def _take(x: Array, index: Array) -> Array:
  """[B, K, R, C] at i32[B, K, n]."""
  return jnp.take_along_axis(x, index[..., None], 2)


def evicting(
  name: str, rows: Callable[[int], int], priority: Priority, judge: Judge | None = None
) -> CacheKind:
  """A kind that keeps R = rows(S) rows of every head, 1 or more."""

  def advanced(cache: Kept) -> Array:
    left = jnp.maximum(cache.capacity - cache.prompt, 1)
    return (cache.length - cache.prompt).astype(jnp.float32) / left.astype(jnp.float32)

  def start(kv: KV, queries: Queries | None, length: Array, capacity: int) -> Kept:
    R, (B, K, T, _) = rows(capacity), kv.k[0].shape
    everywhere = jnp.broadcast_to(jnp.arange(1, T + 1, dtype=jnp.int32), (B, K, T))
    everywhere = jnp.where(everywhere <= length[:, None, None], everywhere, 0)
    ks, vs, places, scores = [], [], [], []
    for i, (k, v) in enumerate(zip(kv.k, kv.v, strict=True)):
      score = jnp.zeros((B, K, T), jnp.float32)
      if judge is not None and queries is not None:
        zero = jnp.zeros(B, jnp.float32)
        score = judge(queries.layers[i], queries.position + 1, k, everywhere, zero)
      rank = jnp.where(everywhere == 0, -jnp.inf, priority(score, everywhere, length))
      best = lax.top_k(rank, min(R, T))[1].astype(jnp.int32)
      more = ((0, 0), (0, 0), (0, R - best.shape[2]))
      ks.append(jnp.pad(_take(k, best), (*more, (0, 0))))
      vs.append(jnp.pad(_take(v, best), (*more, (0, 0))))
      places.append(jnp.pad(jnp.take_along_axis(everywhere, best, 2), more))
      scores.append(jnp.pad(jnp.take_along_axis(score, best, 2), more))
    return Kept(
      KV(tuple(ks), tuple(vs)),
      tuple(places),
      tuple(scores) if judge is not None else (),
      length,
      length,
      jnp.full_like(length, capacity),
    )

  def read(cache: Kept, layer: int, q: Array) -> Prefix:
    return cache.kv.k[layer], cache.kv.v[layer], cache.place[layer][:, 0] > 0

  def commit(cache: Kept, kv: KV, queries: Queries | None, path: Array, committed: Array) -> Kept:
    some = max(1, cache.kv.k[0].shape[2] // 2)  # new rows that do not compete with each other
    for first in range(0, path.shape[1], some):
      part = jnp.clip(committed - first, 0, some)
      cache = _add(cache, kv, queries, path[:, first : first + some], part)
    return cache

  def _add(cache: Kept, kv: KV, queries: Queries | None, path: Array, committed: Array) -> Kept:
    A, (B, K, R, _) = path.shape[1], cache.kv.k[0].shape
    step = jnp.arange(1, A + 1, dtype=jnp.int32)[None]
    new = jnp.where(step <= committed[:, None], cache.length[:, None] + step, 0)
    new = jnp.broadcast_to(new[:, None], (B, K, A))
    length = cache.length + committed
    row, head = jnp.arange(B)[:, None, None], jnp.arange(K)[None, :, None]
    ks, vs, places, scores = [], [], [], []
    for i, (old_k, old_v, place) in enumerate(zip(*cache.kv, cache.place, strict=True)):
      k, v = (
        jnp.take_along_axis(x, path[:, None, :, None], 2).astype(old.dtype)
        for x, old in ((kv.k[i], old_k), (kv.v[i], old_v))
      )
      score = cache.score[i] if cache.score else jnp.zeros((B, K, R), jnp.float32)
      own = jnp.zeros((B, K, A), jnp.float32)
      if judge is not None and queries is not None:
        asked = jnp.take_along_axis(queries.layers[i], path[:, None, :, None], 2)
        added = judge(
          asked,
          new[:, 0],
          jnp.concatenate([old_k, k], 2),
          jnp.concatenate([place, new], 2),
          advanced(cache),
        )
        score, own = score + added[..., :R], added[..., R:]
      rank = jnp.where(place == 0, -jnp.inf, priority(score, place, length))
      slot = lax.top_k(-rank, A)[1].astype(jnp.int32)
      slot = jnp.where(new == 0, R, slot)  # dropped
      ks.append(old_k.at[row, head, slot].set(k, mode="drop"))
      vs.append(old_v.at[row, head, slot].set(v, mode="drop"))
      places.append(place.at[row, head, slot].set(new, mode="drop"))
      scores.append(score.at[row, head, slot].set(own, mode="drop"))
    return cache._replace(
      kv=KV(tuple(ks), tuple(vs)),
      place=tuple(places),
      length=length,
      score=tuple(scores) if judge is not None else (),
    )

  return CacheKind(name, start, read, commit, judges=judge is not None)


def attention(
  q: Array, own: Array, k: Array, place: Array, change: Callable[[Array], Array]
) -> Array:
  """f32[B, K, R]: the sums over queries and a group's heads of the softmax of changed logits.

  Args:
    q, own, k, place: as for a `Judge`; a query sees the rows at places up to its own.
    change: f32[B, K, group, W, R] -> the same.
  """
  B, H, W, C = q.shape
  K = k.shape[1]
  q = q.reshape(B, K, H // K, W, C).astype(jnp.float32) * C**-0.5
  logits = jnp.einsum("bkgwc,bkrc->bkgwr", q, k.astype(jnp.float32))
  rows, own = place[:, :, None, None], own[:, None, None, :, None]
  sees = (rows <= own) & (rows > 0)
  p = jax.nn.softmax(jnp.where(sees, change(logits), -jnp.inf), -1)
  return jnp.where(sees & (own > 0), p, 0).sum((2, 3))
