"""What lies before the block stays as it was; the block and all after it are read again.

Shapes are static and the suffix shrinks, so a few lengths of it are compiled, and each pass takes
the shortest that holds the suffixes of all rows.

Letters: B batch, L canvas length, W window.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Cache, Canvas, Denoiser
from specjax.diffusion.caches.reuse import Reread, reread, reusing
from specjax.diffusion.caches.whole import before_end


def _suffix(
  name: str, denoiser: Denoiser, window: int, lengths: int, stale: Callable[..., Array]
) -> Cache:

  def again(params, kv, canvas: Canvas, lo: Array, last: Array, rows: Array):
    B, L = canvas.tokens.shape
    starts = [L * i // lengths for i in range(lengths)]
    # A block's last commits are read where the next begins: before, these slots were masked.
    begin = jnp.minimum(lo, last)
    renewed = jnp.arange(L, dtype=jnp.int32)[None] >= begin[:, None]

    def take(start: int):
      part = Reread(jnp.full(B, start, jnp.int32), renewed, before_end(canvas))
      return lambda kv: reread(denoiser, window, L - start, params, kv, canvas, lo, rows, part)

    first = jnp.where(rows, begin - int(denoiser.shift), L).min()
    usable = jnp.array(starts, jnp.int32) <= first
    return jax.lax.switch(jnp.maximum(usable.sum() - 1, 0), [take(s) for s in starts], kv)

  return reusing(name, denoiser, window, stale, again)


@functools.cache
def prefix(denoiser: Denoiser, window: int, lengths: int = 8) -> Cache:
  """LOSSY: all is read where a block begins, else the suffix (Fast-dLLM's prefix cache).

  Wu et al. 2025 (arXiv 2505.22618, section 3.1).

  Args:
    lengths: how many lengths of the suffix are compiled.
  """
  return _suffix("prefix", denoiser, window, lengths, lambda fresh, memory, lo: fresh)


@functools.cache
def free(denoiser: Denoiser, window: int, lengths: int = 8) -> Cache:
  """LOSSY: all is read once, and what a block left is never read again.

  FreeCache (2025, arXiv 2505.21467).
  """
  return _suffix("free", denoiser, window, lengths, lambda fresh, memory, lo: memory.passes == 0)
