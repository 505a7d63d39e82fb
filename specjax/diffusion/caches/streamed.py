"""Slots before the first masked one are read once, by models that read masks last. WeDLM.

Liu et al. 2025 (arXiv 2512.22737). Attention is causal in an order that has the filled slots first
and the masked ones behind them. So what a filled slot keeps depends on the filled slots before it
alone, and once no masked slot is before it, it never changes, like a causal target's prefix. A pass
reads the slots that have joined this prefix since the last one, and the window.

Letters beside those of `base`: S rows of the cache.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches.reuse import after_prefix
from specjax.models.cache import once, renew, zero_after


class Streamed(NamedTuple):
  """What rides in the loop.

  Attributes:
    kv: keys and values of the prefix, arrays [B, K, S, C].
    length: i32[B], of how many slots.
  """

  kv: Any
  length: Array


@functools.cache
def streamed(denoiser: Denoiser, window: int) -> CanvasCache:
  """EXACT: slots before the first masked one are read once, by models that read masks last.

  WeDLM (arXiv 2512.22737), with the blocks `streaming`, whose window begins with that slot in every
  round. A pass reads a quarter more slots than the window, or where more have joined the prefix
  twice as many. It reads the whole canvas in a row's first round behind a long prompt, and where
  slots behind the window are given.

  Measured: 1.1 passes, 99.3 % right (denoising_lists)

  Raises:
    ValueError: a denoiser that does not read masks last.
  """
  if not denoiser.masks_last:
    raise ValueError(
      "cache='streamed' needs a denoiser that reads masks last, as WeDLM does: in this one a slot "
      "changes when a later one is filled."
    )
  few = window + -(-window // 4)

  evaluate = functools.partial(after_prefix, denoiser)

  def init(params: Params, canvas: Canvas) -> Streamed:
    zero = jnp.zeros_like(canvas.end)
    run = functools.partial(evaluate, count=canvas.tokens.shape[1] + window)  # see `renew`
    kv = jax.eval_shape(run, params, None, canvas, zero)[1]
    return Streamed(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), kv), zero)

  def states(params: Params, memory: Streamed, canvas: Canvas, lo: Array, fresh: Array):
    L, live = canvas.tokens.shape[1], lo < canvas.end
    missing = lo - memory.length
    behind = jnp.arange(L, dtype=jnp.int32)[None] >= lo[:, None] + window
    given = (behind & canvas.inside & ~canvas.masked).any(1)
    most = min(2 * window, L)

    def through(count: int, rows: Array, whole: bool = False):
      """The pass of `rows` over the `count` slots behind the prefix, or over the canvas."""

      def turn(state: tuple[Array, Streamed]) -> tuple[Array, Streamed]:
        found, memory = state
        start = jnp.zeros_like(lo) if whole else jnp.where(rows, memory.length, 0)
        hidden, new = evaluate(params, None if whole else memory, canvas, start, count)
        position = start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        joined = rows[:, None] & (position < lo[:, None])
        joined = joined & (zero_after(hidden[:, :1, 0]) == 0)
        kv = renew(memory.kv, new, start, joined)
        index = jnp.arange(window, dtype=jnp.int32)[None] + (lo - start)[:, None]
        own = jnp.take_along_axis(hidden, jnp.clip(index, 0, count - 1)[..., None], 1)
        found = jnp.where(rows[:, None, None], own, found)
        return found, Streamed(kv, jnp.where(rows, lo, memory.length))

      return turn

    all_slots = live & (given | (missing > most - window))
    some = live & ~all_slots
    many = (some & (missing > few - window)).any()
    shape = jax.eval_shape(lambda: evaluate(params, None, canvas, lo, window)[0])
    state = jnp.zeros(shape.shape, shape.dtype), memory
    for wanted, run in (
      (all_slots.any(), through(L, all_slots, True)),
      (many, through(most, some)),
      (some.any() & ~many, through(min(few, most), some)),
    ):
      state = once(wanted, run, state)
    return state

  return CanvasCache("streamed", init, states)
