"""The cache of a network with sliding windows, which holds of such a layer the newest rows alone.

It is a `Cache`. A layer whose nodes see W rows at most has a `Newest` of W + 2 STEP rows in the
place of its keys, and of its values. They lie in the order of the text, so that attention reads
them as any others: between two numbers. As soon as STEP rows more have left every window, the
others move to the beginning. What lies where follows from the length alone, so a length must not go
back: such a model is a target, and drafts for none.

Letters: B batch, T padded length of prompts, N nodes, A rows of an accepted path, S capacity.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache
from specjax.models import cache as kv_cache
from specjax.models.cache import Newest
from specjax.models.chunks import Read, committed
from specjax.models.config import Config

STEP = 64  # rows


def gone(length: Array, reach: int) -> Array:
  """i32, how many of the first rows of texts, length i32, a layer holds no more."""
  return jnp.maximum(length - reach, 0) // STEP * STEP


@functools.cache
def reaches(config: Config) -> tuple[int | None, ...]:
  """Of each layer how many of the last rows its nodes see, and those of layers that read its keys
  and values; None for all."""
  layers = [config.of_layer(i) for i in range(config.layers)]
  own = [layer.window if layer.chunk is None else layer.chunk for layer in layers]
  found = list(own)
  for layer, reach in zip(layers, own, strict=True):
    if (i := layer.source) is not None:
      both = found[i], reach
      found[i] = None if None in both else max(x for x in both if x is not None)
  return tuple(found)


def _by_reach(
  config: Config,
  length: Array,
  whole: Callable[..., KV],
  newest: Callable[..., KV],
  *given: KV,
) -> Cache:
  """What `whole` makes of the layers that see everything, and `newest` of a reach and the layers
  that have it; both take these layers' part of each of `given`."""
  found = reaches(config)
  k: list[Any] = [()] * len(found)
  v: list[Any] = [()] * len(found)
  for reach in dict.fromkeys(found):
    layers = [i for i, own in enumerate(found) if own == reach]
    parts = [KV(tuple(kv.k[i] for i in layers), tuple(kv.v[i] for i in layers)) for kv in given]
    made = whole(*parts) if reach is None else newest(reach, *parts)
    for i, own_k, own_v in zip(layers, *made, strict=True):
      k[i], v[i] = (own_k, own_v) if reach is None else (Newest(own_k), Newest(own_v))
  return Cache(KV(tuple(k), tuple(v)), length)


def begun(config: Config, kv: KV, length: Array, capacity: int) -> Cache:
  """`cache.allocate`."""

  def newest(reach: int, fresh: KV) -> KV:
    T, own = fresh.k[0].shape[2], min(capacity, -(-reach // STEP) * STEP + 2 * STEP)
    if reach + STEP <= T:
      rows = gone(length, reach)[:, None] + jnp.arange(min(T, own), dtype=jnp.int32)[None]
      rows = jnp.minimum(rows, T - 1)
      pick = functools.partial(kv_cache.gathered, rows=rows)
      fresh = KV(tuple(map(pick, fresh.k)), tuple(map(pick, fresh.v)))
    return kv_cache.allocate(fresh, length, own).kv

  return _by_reach(
    config, length, lambda fresh: kv_cache.allocate(fresh, length, capacity).kv, newest, kv
  )


def commit(config: Config, cache: Cache, kv: KV, path: Array, rows: Array) -> Cache:
  """`cache.commit`."""
  length, A = cache.length, path.shape[1]

  def newest(reach: int, held: KV, fresh: KV) -> KV:
    if A <= STEP:
      return _appended(held, fresh, length, path, rows, reach)
    for first in range(0, A, STEP):  # after the first of these that is not full, nothing is added
      before = jnp.minimum(first, rows)
      step = jnp.arange(min(STEP, A - first), dtype=jnp.int32)[None]
      own = jnp.take_along_axis(path, before[:, None] + step, 1)
      some = jnp.clip(rows - before, 0, step.shape[1])
      held = _appended(held, fresh, length + before, own, some, reach)
    return held

  def plain(x: Any) -> Array:
    return x.rows if isinstance(x, Newest) else x

  old = KV(tuple(map(plain, cache.kv.k)), tuple(map(plain, cache.kv.v)))
  return _by_reach(
    config,
    length + rows,
    lambda held, fresh: kv_cache.commit(Cache(held, length), fresh, path, rows).kv,
    newest,
    old,
    kv,
  )


def _appended(kv: KV, fresh: KV, length: Array, path: Array, rows: Array, reach: int) -> KV:
  """The newest rows behind a path of at most STEP nodes."""
  held = gone(length, reach)
  kv = kv_cache.commit(Cache(kv, length - held), fresh, path, rows).kv
  if kv.k[0].shape[2] < reach + STEP:  # then the capacity ends before a row may go
    return kv
  more = gone(length + rows, reach) - held
  return kv_cache.once((more > 0).any(), lambda kv: kv_cache.moved(kv, fresh, more, STEP), kv)


def prefill(
  config: Config, read: Read, tokens: Array, length: Array, capacity: int
) -> tuple[Cache, Any]:
  """(the cache, what else `read` returns) of prompts i32[B, T], as `chunks.read_prompts` has it."""
  begin = functools.partial(begun, config, capacity=capacity)
  return committed(read, begin, functools.partial(commit, config), tokens, length)
