"""The frame of most caches: now and then the whole canvas is read, else a part of it.

A denoiser sees both sides, so every commit changes the keys and values of all slots a little.
Caches differ in which of these changes they leave out.

Letters: B batch, L canvas length, W window, N slots that are read again, E model width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Cache, Canvas, Denoiser, Earlier, Params
from specjax.diffusion.caches.whole import read, reading


class KVState(NamedTuple):
  """What such caches carry.

  Attributes:
    kv: keys and values, arrays [B, any, L, any].
    passes: i32[B], how many the row has had.
    last: i32[B], where the window began in the pass before.
  """

  kv: Any
  passes: Array
  last: Array


class Reread(NamedTuple):
  """What is read again in a pass.

  Attributes:
    start: i32[B]. Slots start..start + N - 1 are read.
    renewed: bool[B, L]. Those of them whose keys and values count from now on; of all other slots
      the old ones do.
    inside: bool[B, L], slots that are not left out of this pass altogether.
  """

  start: Array
  renewed: Array
  inside: Array


def reread(
  denoiser: Denoiser, window: int, count: int, params: Params, kv: Any, canvas: Canvas,
  lo: Array, rows: Array, part: Reread,
) -> tuple[Array, Any]:  # fmt: skip
  """A pass over `count` = N slots: (states [B, W, E] of the window, kv).

  Args:
    rows: bool[B]; of other rows nothing is written.
  """
  L = canvas.tokens.shape[1]
  position = part.start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
  tokens, renewed, inside = (
    jnp.take_along_axis(x, position, 1) for x in (canvas.tokens, part.renewed, part.inside)
  )
  earlier = Earlier(kv, part.inside & ~part.renewed)
  hidden, new = denoiser.evaluate(params, tokens, position, renewed & inside, earlier)
  column = jnp.where(renewed & rows[:, None], position, L)
  row = jnp.arange(len(lo))[:, None]
  kv = jax.tree.map(
    lambda old, x: old.at[row, :, column].set(x.swapaxes(1, 2), mode="drop"), kv, new
  )
  index = reading(denoiser, lo, window) - part.start[:, None]
  return jnp.take_along_axis(hidden, index[..., None], 1), kv


def reusing(
  name: str, denoiser: Denoiser, window: int, stale: Callable[..., Array],
  again: Callable[..., Any], *, steady: bool = True,
) -> Cache:  # fmt: skip
  """A cache that reads all of a row when it is stale, and else what `again` reads.

  Rows stay independent: where a batch holds rows of both kinds, both passes are run.

  Args:
    stale: (fresh bool[B], memory, lo) -> bool[B]; true in a row's first pass.
    again: (params, kv, canvas, lo, last, rows bool[B]) -> (states [B, W, E], kv); see `KVState`.
    steady: see `Cache`.
  """

  def init(params: Params, canvas: Canvas) -> KVState:
    lo = jnp.zeros(len(canvas.end), jnp.int32)
    _, kv = jax.eval_shape(lambda p, c: read(denoiser, window, p, c, lo), params, canvas)
    return KVState(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), kv), lo, lo)

  def states(params: Params, memory: KVState, canvas: Canvas, lo: Array, fresh: Array):
    live = lo < canvas.end
    whole = stale(fresh, memory, lo) & live
    part = live & ~whole

    def read_all(kv: Any):
      found, new = read(denoiser, window, params, canvas, lo)
      rows = whole[:, None, None, None]
      return found, jax.tree.map(lambda a, b: jnp.where(rows, a, b), new, kv)

    def skip(kv: Any):
      shape = jax.eval_shape(read_all, kv)[0]
      return jnp.zeros(shape.shape, shape.dtype), kv

    of_all, kv = jax.lax.cond(whole.any(), read_all, skip, memory.kv)
    of_part, kv = jax.lax.cond(
      part.any(), lambda kv: again(params, kv, canvas, lo, memory.last, part), skip, kv
    )
    found = jnp.where(whole[:, None, None], of_all, of_part)
    return found, KVState(
      kv, memory.passes + live.astype(jnp.int32), jnp.where(live, lo, memory.last)
    )

  return Cache(name, init, states, steady)
