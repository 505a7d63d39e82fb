"""Every pass reads the whole canvas.

Letters: B batch, L canvas length, W window, E model width.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Cache, Canvas, Denoiser, Params


def reading(denoiser: Denoiser, lo: Array, window: int) -> Array:
  """i32[B, W]: the slots whose states predict the window's; slot 0 predicts itself."""
  position = lo[:, None] + jnp.arange(window, dtype=jnp.int32)[None]
  return jnp.maximum(position - int(denoiser.shift), 0)


def before_end(canvas: Canvas) -> Array:
  """bool[B, L]: the slots that count."""
  return jnp.arange(canvas.tokens.shape[1])[None] < canvas.end[:, None]


def read(
  denoiser: Denoiser, window: int, params: Params, canvas: Canvas, lo: Array
) -> tuple[Array, Any]:
  """One pass over all slots: (states [B, W, E] of the window, kv)."""
  B, L = canvas.tokens.shape
  position = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
  hidden, kv = denoiser.evaluate(params, canvas.tokens, position, before_end(canvas), None)
  index = reading(denoiser, lo, window)
  return jnp.take_along_axis(hidden, index[..., None], 1), kv


@functools.cache
def none(denoiser: Denoiser, window: int) -> Cache:
  """EXACT: every pass reads the whole canvas, nothing is cached."""

  def states(params: Params, cache, canvas: Canvas, lo: Array, fresh: Array):
    return read(denoiser, window, params, canvas, lo)[0], cache

  return Cache("none", lambda params, canvas: (), states)
