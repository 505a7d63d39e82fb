"""The key/value cache: allocation and the only write."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache, Evaluation, Params, Target
from specjax.kernels.tree_attention import Paged
from specjax.models import pages
from specjax.models.pages import PagedCache, PagedHybrid
from specjax.models.recurrence import State
from specjax.models.writing import Index, row_of, spread, written


class Newest(NamedTuple):
  """Of a layer with a sliding window the newest `rows` [B, K, R, C], see `models.newest`."""

  rows: Array


def rows_of(cache: Any) -> KV:
  """What a cache holds that is dense, or lies in pages: of each layer an array, or `Paged`; of a
  recurrent layer its state, and nothing.

  It raises ValueError for another, which only its own target reads.
  """
  if isinstance(cache, PagedCache):
    k, v = (tuple(Paged(x, cache.table) for x in xs) for xs in cache.kv)
    return KV(k, v)
  if isinstance(cache, PagedHybrid):
    attending = zip(*rows_of(cache.pages), strict=True)
    each = [next(attending) if state is None else (state, ()) for state in cache.states]
    return KV(*zip(*each, strict=True))
  if not isinstance(cache, Cache):
    raise ValueError("the target's cache must be dense for a drafter that reads it.")
  return cache.kv


def cut(cache: Any, length: Array) -> Any:
  """The cache, of which later rows than length i32[B] are forgotten.

  It raises ValueError for recurrent layers, whose states cannot go back: such a model is a target,
  and drafts for none. Nor can a cache that holds the newest rows alone.
  """
  leaves = jax.tree.leaves(cache, is_leaf=lambda x: isinstance(x, State | Newest))
  if any(isinstance(x, State) for x in leaves):
    raise ValueError("a draft model must have no recurrent layers: their states cannot go back.")
  if any(isinstance(x, Newest) for x in leaves):
    raise ValueError("a draft model's cache must be whole: without its old rows it cannot go back.")
  return cache._replace(length=length)


def allocate(fresh: KV, length: Array, capacity: int) -> Cache:
  """A cache of `capacity` S rows, of which the first are the rows of `fresh`, [B, K, T <= S, C].

  `length` i32[B] is how many of the T rows hold tokens.
  """

  def grow(x: Array) -> Array:
    x = jnp.pad(x, ((0, 0), (0, 0), (0, capacity - x.shape[2]), (0, 0)))
    place = spread(x)
    return x if place is None else lax.with_sharding_constraint(x, place)

  return Cache(KV(tuple(map(grow, fresh.k)), tuple(map(grow, fresh.v))), length)


def commit(cache: Any, kv: KV, path: Array, rows: Array) -> Any:
  """Appends the first rows[b] (0..A) nodes of path[b], of path i32[B, A], to row b of the cache.

  A window of A rows is always written (a static shape), and the next window overwrites the garbage
  past `rows`. The window is gathered from the fresh keys and values `kv` [B, K, N, C], never from
  the cache, and is written row by row: both keep XLA from copying the cache, and a scatter would
  have a TPU keep it in another order than its kernels read it. The caller keeps length + A <= S, so
  that the window never clamps. A `PagedCache` is written by `pages.commit`.
  """
  if isinstance(cache, PagedCache):
    return pages.commit(cache, kv, path, rows)

  # rows is never negative, so this adds 0. It makes the write wait for the verdict and thus for
  # every read of the cache; otherwise XLA copies the cache where path folds to a constant.
  start_row = cache.length + jnp.minimum(rows, 0)

  def window(buffer: Array, fresh: Array, path: Array, start_row: Array) -> Array:
    return jnp.take_along_axis(fresh, path[:, None, :, None], axis=2).astype(buffer.dtype)

  def append(buffer: Array, window: Array, b: Index, path: Array, start_row: Array) -> Array:
    start = (b, 0, start_row[b], 0)
    return lax.dynamic_update_slice(buffer, row_of(window, b), start)

  return Cache(written(window, append, cache.kv, kv, path, start_row), cache.length + rows)


def renew(kv: Any, fresh: Any, start: Array, rows: Array) -> Any:
  """kv, arrays [B, K, S, C], with `fresh` [B, K, N, C] from start i32[B] on where rows bool[B, N].

  The caller keeps start + N <= S. Rows are written one by one, as in `commit`.
  """

  def put(buffer: Array, fresh: Array, b: Index, start: Array, rows: Array) -> Array:
    place = (b, 0, start[b], 0)
    before = lax.dynamic_slice(buffer, place, (1, *fresh.shape[1:]))
    window = jnp.where(rows[b, :, None], row_of(fresh, b).astype(buffer.dtype), before)
    return lax.dynamic_update_slice(buffer, window, place)

  return written(lambda buffer, fresh, *_: fresh, put, kv, fresh, start, rows)


def moved(kv: Any, fresh: Any, by: Array, most: int) -> Any:
  """kv, arrays [B, K, S, C], whose rows from by i32[B] on, 0 to `most`, are its first ones.

  Its last `most` rows stay. `fresh` are arrays [B, K, N, C], whatever they have.
  """

  def put(buffer: Array, _: Array, b: Index, by: Array) -> Array:
    size = 1, buffer.shape[1], buffer.shape[2] - most, buffer.shape[3]
    rows = lax.dynamic_slice(buffer, (b, 0, by[b], 0), size)
    return lax.dynamic_update_slice(buffer, rows, (b, 0, 0, 0))

  return written(lambda buffer, fresh, *_: fresh, put, kv, fresh, by)


def gathered(x: Array, rows: Array) -> Array:
  """[B, K, R, C], rows i32[B, R] of x [B, K, S, C].

  Every row of every head is named: for rows of all heads at once a TPU keeps x in another order.
  """
  index = jnp.broadcast_to(rows[:, None, :, None], (*x.shape[:2], rows.shape[1], 1))
  return jnp.take_along_axis(x, index, 2)


def once(wanted: Array, run: Callable[[Any], Any], state: Any) -> Any:
  """run(state) where `wanted` bool[] holds, else state.

  It is a loop of at most one turn: XLA writes into a loop's state, but copies what a conditional
  hands through, which would be the cache in every pass.
  """

  def turn(carry: tuple[Array, Any]) -> tuple[Array, Any]:
    return jnp.zeros((), bool), run(carry[1])

  return lax.while_loop(lambda carry: carry[0], turn, (wanted, state))[1]


def zero_after(x: Array) -> Array:
  """i32, zeros of the shape of x, of which XLA does not know that they are before it has x.

  Added to where a cache is written, they have the write wait for the pass that reads the cache and
  makes x. A write that may come first would have XLA copy the cache.
  """
  return jnp.minimum((x > 0).astype(jnp.int32), 0)


def append_one(
  network: Target, cache: Cache, evaluation: Evaluation, live: Array | None = None
) -> Cache:
  """The cache after the one node that `network` evaluated, for models that draft token by token.

  Rows that are not live bool[B] stay as they are; by default all are live.
  """
  path = jnp.zeros_like(cache.length)[:, None]
  rows = jnp.ones_like(cache.length) if live is None else live.astype(jnp.int32)
  return network.commit(cache, evaluation.kv, path, rows + zero_after(evaluation.logits[:, 0, 0]))


def read_one(
  network: Target, params: Params, cache: Cache, tokens: Array, live: Array | None = None
) -> tuple[Array, Cache]:
  """(logits f32[B, V] after tokens i32[B], the cache that has them), see `append_one`."""
  alone = jnp.zeros((len(tokens), 1), jnp.int32), jnp.ones((len(tokens), 1, 1), bool)
  evaluation = network.evaluate(params, cache, tokens[:, None], *alone)
  return evaluation.logits[:, 0], append_one(network, cache, evaluation, live)
