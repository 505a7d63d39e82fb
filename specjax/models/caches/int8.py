"""A cache in 8 bits."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.models.caches.base import CacheKind
from specjax.models.caches.packed import packed
from specjax.models.int8 import Int8, quantise


@functools.cache
def int8(rows: int = 32) -> CacheKind:
  """LOSSY: keys and values in 8 bits, with a scale for each row of each head.

  A block's rows are packed together, so that the newest, fewer than twice `rows`, are not rounded.

  Measured: perplexity 19.539 for 19.540 (caches)

  Args:
    rows: of a block.

  Raises:
    ValueError: a block without rows.
  """
  if rows < 1:
    raise ValueError(f"`rows` must be at least 1 row in a block, got {rows}.")

  def pack(k: Array, v: Array) -> tuple[Int8, Int8]:
    return quantise(k, jnp.float32), quantise(v, jnp.float32)

  def unpack(block: tuple[Int8, Int8], width: int) -> tuple[Array, Array]:
    k, v = (x.rows.astype(jnp.float32) * x.scale[..., None] for x in block)
    return k, v

  return packed("int8", pack, unpack, rows=rows)
