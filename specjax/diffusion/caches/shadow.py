"""What a committed slot would be, if it were masked: the network reads the block twice. WINO.

Hong et al. 2025 (arXiv 2507.18578, section 3.2).
"""

import functools

import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches.reuse import of_whole_canvas
from specjax.trees.structure import take_rows


@functools.cache
def shadow(denoiser: Denoiser, window: int) -> CanvasCache:
  """EXACT: committed slots are predicted without their own token, for `wino` and `remask`.

  WINO (arXiv 2507.18578). A pass also reads W masks at the block's positions, its shadow: each sees
  the canvas but for its own slot, and the other masks. The canvas does not see them, so that masked
  slots are told what `none` tells them, and policies that only commit write the same.

  Measured: 4 of 4 slots equal (changes)

  Raises:
    ValueError: a denoiser that is shifted, smoothed, causal over blocks, or of uniform noise.
  """
  of_whole_canvas(denoiser, "shadow")
  if denoiser.shift or denoiser.mask is None or denoiser.soften is not None:
    checks.refuse(
      "cache", "shadow", "another for a denoiser that is shifted or smoothed, or has no mask"
    )

  def states(params: Params, cache, canvas: Canvas, lo: Array, fresh: Array):
    B, L = canvas.tokens.shape
    slot = jnp.broadcast_to(jnp.arange(L + window, dtype=jnp.int32), (B, L + window))
    own = lo[:, None] + slot[:, :window]
    position = jnp.where(slot < L, slot, slot - L + lo[:, None])
    tokens = jnp.pad(canvas.tokens, ((0, 0), (0, window)), constant_values=denoiser.mask)
    real = slot < L
    sees = (position < canvas.end[:, None])[:, None] & (
      jnp.where(real[:, :, None], real[:, None], position[:, :, None] != position[:, None])
      | (~real[:, :, None] & ~real[:, None])
    )
    hidden, _ = denoiser.evaluate(params, tokens, position, sees, None)
    said = jnp.where(take_rows(canvas.masked, own), own, slot[:, L:])
    return take_rows(hidden, said), cache

  return CanvasCache("shadow", lambda params, canvas: (), states)
