"""Plans without a cache.

Letters: B batch, L canvas length, W window, E model width.
"""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, Denoiser, Params, Plan


def reading(denoiser: Denoiser, lo: Array, window: int) -> Array:
  """i32[B, W]: the slots whose states predict the window's; slot 0 predicts itself."""
  position = lo[:, None] + jnp.arange(window, dtype=jnp.int32)[None]
  return jnp.maximum(position - int(denoiser.shift), 0)


@functools.cache
def none(denoiser: Denoiser, window: int) -> Plan:
  """Every pass over the whole canvas."""

  def init(params: Params, canvas: Canvas):
    return ()

  def states(params: Params, cache, canvas: Canvas, lo: Array, fresh: Array):
    seen = jnp.arange(canvas.tokens.shape[1])[None] < canvas.end[:, None]
    hidden = denoiser.evaluate(params, canvas.tokens, seen)
    index = reading(denoiser, lo, window)
    return jnp.take_along_axis(hidden, index[..., None], 1), cache

  return Plan("none", init, states)
