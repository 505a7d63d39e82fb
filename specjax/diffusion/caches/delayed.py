"""What is committed is cached one pass later, and only masked slots are read. dKV-Cache.

Ma et al. 2025 (arXiv 2505.15781, section 3.3, its variant Decode). The keys and values of a slot
change most in the pass after its commit, so they are kept from that pass on, wherever it lies.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Earlier, Params
from specjax.diffusion.caches.reuse import KVState, put_heads, reading, reusing
from specjax.models.cache import once, zero_after
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
    L, index = canvas.tokens.shape[1], reading(denoiser, lo, window)
    asked = canvas.masked | last.masked
    if denoiser.shift:
      asked = asked | jnp.pad(canvas.masked, ((0, 0), (0, 1)))[:, 1:]
    asked = asked & canvas.inside
    place = take_rows(jnp.cumsum(asked, 1) - 1, index)

    def some(count: int, state: tuple[Array, Any]) -> tuple[Array, Any]:
      """The pass over `count` slots, among which are all that are asked for."""
      kv, slot = state[1], jnp.argsort(~asked, 1, stable=True)[:, :count].astype(jnp.int32)
      own, earlier = take_rows(asked, slot), Earlier(kv, canvas.inside & ~asked)
      soft = () if denoiser.soften is None else (take_rows(canvas.soft, slot),)
      read = take_rows(canvas.tokens, slot), slot, own, earlier, *soft
      hidden, new = denoiser.evaluate(params, *read)
      # The write waits for the pass, which reads the cache.
      written = slot + zero_after(hidden[:, :1, 0]), own & rows[:, None]
      kv = jax.tree.map(lambda old, x: put_heads(old, *written, x), kv, new)
      found = take_rows(hidden, jnp.clip(place, 0, count - 1))
      return jnp.where(take_rows(asked, index)[..., None], found, last.found), kv

    most, state = jnp.where(rows, asked.sum(1), 0).max(), (last.found, kv)
    counts = sorted({-(-L * i // lengths) for i in range(1, lengths + 1)})
    for least, count in itertools.pairwise((0, *counts)):
      wanted = (most > least) & (most <= count)
      state = once(wanted, functools.partial(some, count), state)
    return state

  return reusing("delayed", denoiser, window, stale, again, steady=False, remember=remember)
