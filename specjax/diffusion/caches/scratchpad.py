"""Of the slots behind the block, few are read, and the fewer the further they are. DPad.

Chen et al. 2025 (arXiv 2508.14148, section 3).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from specjax import checks
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches import reuse
from specjax.sampling import new_key
from specjax.trees.structure import take_rows


def kept(canvas: Canvas, begin: Array, ahead: int, decay: float, scale: float) -> Array:
  """bool[B, L], the slots that are read where those from begin i32[B] on are behind the block."""
  behind = jnp.arange(canvas.tokens.shape[1], dtype=jnp.int32)[None] - begin[:, None]
  far = behind.astype(jnp.float32) / max(ahead - 1, 1)
  chance = scale * norm.pdf(decay * far)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(new_key(0), begin)
  drawn = jax.vmap(lambda key: jax.random.uniform(key, (ahead,)))(keys)
  some = (take_rows(drawn, jnp.clip(behind, 0, ahead - 1)) < chance) & (behind < ahead)
  return canvas.inside & ((behind < 0) | some | ~canvas.masked)


@functools.cache
def scratchpad(
  denoiser: Denoiser,
  window: int,
  ahead: int = 256,
  decay: float = 4.0,
  scale: float = 2.0,
  lengths: int = 8,
) -> CanvasCache:
  """LOSSY: of the masked slots behind the block, passes read only some, mostly near ones.

  DPad (arXiv 2508.14148). Slot d of `ahead` behind the window is kept with the chance
  scale * N(decay * d / (ahead - 1)), N the standard normal density. It is drawn once a block, and
  all rows whose blocks begin at one place have one draw.

  Measured: .70 of the time, 85.8 % right (denoising_lists)

  Args:
    ahead: behind so many slots none is kept; published 128 to 512.
    decay: where the last of them lies, in standard deviations; published 3 and 4.
    scale: published 2 and 2.3.
    lengths: how many numbers of slots are compiled.

  Raises:
    ValueError: a denoiser that is causal over blocks, or a number below 1.
  """
  reuse.of_whole_canvas(denoiser, "scratchpad")
  checks.whole("ahead", ahead, 1)
  checks.whole("lengths", lengths, 1)

  def states(params: Params, cache: Any, canvas: Canvas, lo: Array, fresh: Array):
    asked = kept(canvas, lo + window, ahead, decay, scale)

    def some(count: int, found: Array) -> Array:
      return reuse.pick(denoiser, window, count, params, canvas, lo, asked).states

    none = jax.eval_shape(functools.partial(some, 1), jnp.zeros(()))
    live = (lo < canvas.end)[:, None]
    found = jnp.zeros(none.shape, none.dtype)
    return reuse.in_lengths(lengths, asked & live, some, found), cache

  return CanvasCache("scratchpad", lambda params, canvas: (), states)
