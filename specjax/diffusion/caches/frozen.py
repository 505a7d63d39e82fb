"""Only slots about the block, or from the block on, are read again; the others stay as they were.

A suffix shrinks and shapes are static, so a few lengths of it are compiled, and each pass takes the
shortest that holds the suffixes of all rows.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches.reuse import KVState, Reread, read, reread, reusing
from specjax.models.cache import once


@functools.cache
def none(denoiser: Denoiser, window: int) -> CanvasCache:
  """EXACT: every pass reads the whole canvas, nothing is cached.

  Measured: 0.67 s for 40 answers, 92.5 % right (denoising_time)
  """

  def states(params: Params, cache, canvas: Canvas, lo: Array, fresh: Array):
    return read(denoiser, window, params, canvas, lo)[0], cache

  return CanvasCache("none", lambda params, canvas: (), states)


def _about(denoiser: Denoiser, window: int, before: int, after: int, ahead: int | None = None):
  """`again` of `reusing`: reads the window, and slots before and after it.

  Of the masked slots the first `ahead` are seen, where it is given. Which slots are renewed does
  not depend on the canvas's length, and so not on the texts beside a text.
  """
  before = max(before, int(denoiser.shift))

  def again(params, kv, canvas: Canvas, lo: Array, last: Array, rows: Array):
    L = canvas.tokens.shape[1]
    size = before + window + after
    count = min(size, L)
    first = jnp.maximum(lo - before, 0)
    start = jnp.minimum(first, L - count)  # a canvas may end before the slots that are wanted
    slot = jnp.arange(L, dtype=jnp.int32)[None]
    inside = canvas.inside
    if ahead is not None:
      rank = jnp.cumsum(canvas.masked & inside, 1, dtype=jnp.int32)
      inside = inside & (~canvas.masked | (rank <= ahead))
    renewed = (slot >= first[:, None]) & (slot < first[:, None] + size)
    part = Reread(start, renewed, inside)
    return reread(denoiser, window, count, params, kv, canvas, lo, rows, part)

  return again


@functools.cache
def dual(denoiser: Denoiser, window: int) -> CanvasCache:
  """LOSSY: passes read only the block; the rest is read where a block begins.

  Wu et al. 2025 (arXiv 2505.22618, section 3.1). A shifted denoiser reads the slot before, too.

  This is Fast-dLLM's dual cache.

  Measured: 0.62 s for 40 answers, 77.5 % right (denoising_time)
  """
  again = _about(denoiser, window, 0, 0)
  return reusing("dual", denoiser, window, lambda fresh, memory, lo: fresh, again)


@functools.cache
def vicinity(
  denoiser: Denoiser, window: int, before: int = 16, after: int = 16, warm_up: int = 4
) -> CanvasCache:
  """LOSSY: passes read the block and some of its neighbours.

  It is `dual` with neighbours. dInfer (Ma et al. 2025, arXiv 2510.08666).

  Measured: 3.0 passes, 93.0 % right (denoising_lists)

  Args:
    before, after: how many neighbours are read on either side.
    warm_up: how many of a row's first passes read all.
  """
  return reusing(
    "vicinity",
    denoiser,
    window,
    lambda fresh, memory, lo: fresh | (memory.passes < warm_up),
    _about(denoiser, window, before, after),
    steady=not warm_up,
  )


@functools.cache
def sliding(denoiser: Denoiser, window: int, ahead: int = 64, every: int = 32) -> CanvasCache:
  """LOSSY: passes read and see only a window around the block.

  Window-Diffusion (2026, arXiv 2601.20332). There the slots read again are the first masked ones
  and what was filled since the last full pass; here they are the block and as many before it.

  Some passes read all, others what is about the block; what lies far ahead is not seen.

  Measured: 3.0 passes, 93.0 % right (denoising_lists)

  Args:
    ahead: how many masked slots are seen, from the first on.
    every: passes from one full pass to the next.
  """

  def stale(fresh: Array, memory: KVState, lo: Array) -> Array:
    # If the block has moved by more than a window, the last block's commits would not be read.
    return (memory.passes % every == 0) | (lo - memory.last > window)

  again = _about(denoiser, window, window, 0, ahead)
  return reusing("sliding", denoiser, window, stale, again, steady=False)


def _suffix(
  name: str, denoiser: Denoiser, window: int, lengths: int, stale: Callable[..., Array]
) -> CanvasCache:
  def again(params, kv, canvas: Canvas, lo: Array, last: Array, rows: Array):
    B, L = canvas.tokens.shape
    starts = [L * i // lengths for i in range(lengths)]
    # The last commits of a block are read where the next block begins: their slots were masked.
    begin = jnp.minimum(lo, last)
    renewed = jnp.arange(L, dtype=jnp.int32)[None] >= begin[:, None]

    def take(start: int, state: tuple[Array, Any]) -> tuple[Array, Any]:
      part = Reread(jnp.full(B, start, jnp.int32), renewed, canvas.inside)
      return reread(denoiser, window, L - start, params, state[1], canvas, lo, rows, part)

    first = jnp.where(rows, begin - int(denoiser.shift), L).min()
    usable = jnp.maximum((jnp.array(starts, jnp.int32) <= first).sum() - 1, 0)
    shape = jax.eval_shape(functools.partial(take, 0), (None, kv))[0]
    state = jnp.zeros(shape.shape, shape.dtype), kv
    for i, start in enumerate(starts):
      state = once(usable == i, functools.partial(take, start), state)
    return state

  return reusing(name, denoiser, window, stale, again)


@functools.cache
def prefix(denoiser: Denoiser, window: int, lengths: int = 8) -> CanvasCache:
  """LOSSY: passes read the block and all after it.

  Wu et al. 2025 (arXiv 2505.22618, section 3.1).

  All is read where a block begins: Fast-dLLM's prefix cache.

  Measured: 3.0 passes, 74.5 % right (denoising_lists)

  Args:
    lengths: how many lengths of the suffix are compiled.
  """
  return _suffix("prefix", denoiser, window, lengths, lambda fresh, memory, lo: fresh)


@functools.cache
def free(denoiser: Denoiser, window: int, lengths: int = 8) -> CanvasCache:
  """LOSSY: all is read once, and the slots before the block are never read again.

  FreeCache (2025, arXiv 2505.21467).

  Measured: 3.0 passes, 74.5 % right (denoising_lists)
  """
  return _suffix("free", denoiser, window, lengths, lambda fresh, memory, lo: memory.passes == 0)
