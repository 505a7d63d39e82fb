"""What an encoder wrote of the text before the block, for a decoder that reads the block alone.

Letters beside those of `base`: S rows of the cache.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Earlier, Params
from specjax.models.cache import once, renew, zero_after
from specjax.trees.structure import take_rows


class Encoded(NamedTuple):
  """What rides in the loop.

  Attributes:
    kv: keys and values that the encoder wrote, arrays [B, any, S, any].
    length: i32[B], of how many slots.
  """

  kv: Any
  length: Array


@functools.cache
def encoded(denoiser: Denoiser, window: int) -> CanvasCache:
  """EXACT: finished blocks are encoded once, by models that have an encoder.

  DiffusionGemma (2026). Every pass of the decoder reads the W slots of the block. Where a block
  begins, the encoder first reads the block before it, or as many slots as that has of a short
  prompt, and of a longer one the whole canvas. The decoder sees nothing behind its block.

  Raises:
    ValueError: a denoiser without an encoder.
  """
  encode = denoiser.encode
  if encode is None:
    raise ValueError("cache='encoded' needs a denoiser with an encoder, as DiffusionGemma has.")

  def visible(memory: Encoded) -> Array:
    S = jax.tree.leaves(memory.kv)[0].shape[2]
    return jnp.arange(S, dtype=jnp.int32)[None] < memory.length[:, None]

  def slots(canvas: Canvas, start: Array, count: int) -> tuple[Array, Array, Array]:
    """(tokens, position, whether they are inside), of `count` slots from start i32[B] on."""
    position = start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
    return take_rows(canvas.tokens, position), position, position < canvas.end[:, None]

  def init(params: Params, canvas: Canvas) -> Encoded:
    zero = jnp.zeros_like(canvas.end)
    part = slots(canvas, zero, canvas.tokens.shape[1])
    kv = jax.eval_shape(encode, params, *part)
    return Encoded(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), kv), zero)

  def states(params: Params, memory: Encoded, canvas: Canvas, lo: Array, fresh: Array):
    missing = jnp.where(lo < canvas.end, lo - memory.length, 0)

    def through(count: int, rows: Array, earlier: bool):
      """The encoder over `count` slots of `rows`, from what it has read or from the start on."""

      def turn(memory: Encoded) -> Encoded:
        start = jnp.where(rows & earlier, memory.length, 0)
        part = slots(canvas, start, count)
        new = encode(params, *part, Earlier(memory.kv, visible(memory)) if earlier else None)
        written = rows[:, None] & (part[1] < lo[:, None])
        written = written & (zero_after(jax.tree.leaves(new)[0][:, 0, :, 0]) == 0)
        kv = renew(memory.kv, new, start, written)
        return Encoded(kv, jnp.where(rows, lo, memory.length))

      return turn

    L = canvas.tokens.shape[1]
    for count, rows, earlier in (
      (L, missing > window, False),
      (window, (missing > 0) & (missing <= window), True),
    ):
      memory = once(rows.any(), through(count, rows, earlier), memory)
    part = slots(canvas, lo, window)
    soft = () if denoiser.soften is None else (take_rows(canvas.soft, part[1]),)
    found, _ = denoiser.evaluate(params, *part, Earlier(memory.kv, visible(memory)), *soft)
    return found, memory

  return CanvasCache("encoded", init, states)
