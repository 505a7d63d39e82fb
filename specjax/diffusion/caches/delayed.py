"""What is committed is cached one pass later, and only masked slots are read. dKV-Cache.

Ma et al. 2025 (arXiv 2505.15781, section 3.3, its variant Decode). The keys and values of a slot
change most in the pass after its commit, so they are kept from that pass on, wherever it lies.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Earlier, Params
from specjax.diffusion.caches.reuse import KVState, in_lengths, pick, put_heads, reading, reusing
from specjax.models.cache import zero_after
from specjax.trees.structure import take_rows


class Delayed(NamedTuple):
  """What is remembered of the pass before.

  Attributes:
    found: [B, W, E], the window's states; a slot that is not read keeps its own.
    masked: bool[B, L].
    step: i32[B], passes of the block so far.
  """

  found: Array
  masked: Array
  step: Array


@functools.cache
def delayed(denoiser: Denoiser, window: int, every: int = 8, lengths: int = 4) -> CanvasCache:
  """LOSSY: passes read the masked slots and those that the pass before committed.

  dKV-Cache (arXiv 2505.15781). All slots are read in a block's first two passes, and now and then.
  A shifted denoiser also reads the slots before masked ones.

  Measured: 16 of 16 passes equal (changes)

  Args:
    every: passes of a block from one full pass to the next; published 2 to 8.
    lengths: how many numbers of slots are compiled.

  Raises:
    ValueError: a denoiser that is causal over blocks, or a number below 1.
  """
  checks.whole("every", every, 1)
  checks.whole("lengths", lengths, 1)

  def remember(last: Delayed | None, canvas: Canvas, lo: Array, fresh: Array, found: Array):
    step = jnp.where(fresh, 0, 0 if last is None else last.step)
    return Delayed(found, canvas.masked & canvas.inside, step + 1)

  def stale(fresh: Array, memory: KVState, lo: Array) -> Array:
    step = jnp.where(fresh, 0, memory.last.step)
    return (step < 2) | (step % every == 0)

  def again(params: Params, kv: Any, canvas: Canvas, lo: Array, last: Delayed, rows: Array):
    asked = canvas.masked | last.masked
    if denoiser.shift:
      asked = asked | jnp.pad(canvas.masked, ((0, 0), (0, 1)))[:, 1:]
    asked = asked & canvas.inside
    own = take_rows(asked, reading(denoiser, lo, window))[..., None]

    def some(count: int, state: tuple[Array, Any]) -> tuple[Array, Any]:
      kv = state[1]
      earlier = Earlier(kv, canvas.inside & ~asked)
      found = pick(denoiser, window, count, params, canvas, lo, asked, earlier)
      # The write waits for the pass, which reads the cache.
      written = found.slot + zero_after(found.states[:, :1, 0]), found.own & rows[:, None]
      kv = jax.tree.map(lambda old, x: put_heads(old, *written, x), kv, found.kv)
      return jnp.where(own, found.states, last.found), kv

    return in_lengths(lengths, asked & rows[:, None], some, (last.found, kv))

  return reusing("delayed", denoiser, window, stale, again, steady=False, remember=remember)
