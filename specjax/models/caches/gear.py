"""GEAR: few bits, the largest numbers whole, and a thin product for what is left.

Letters: g rows of a block, C head dimension, n length of a vector, r rank.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.models.caches.base import CacheKind
from specjax.models.caches.packed import packed
from specjax.sampling import new_key

ROWS = 64
SWEEPS = 3  # of the power iteration


class Geared(NamedTuple):
  """Blocks of vectors [.., m, n], of which a vector is a channel's keys, or a row's values.

  Attributes:
    codes: u8[.., m, n bits / 8].
    low, step: f16[.., m], a code 0, and how much one more is worth.
    place: u8[.., m, 2 count], the entries that are kept whole, the smallest first.
    entries: f16[.., m, 2 count].
    left, right: f16[.., m, r], f16[.., n, r], whose product is what the codes leave over.
  """

  codes: Array
  low: Array
  step: Array
  place: Array
  entries: Array
  left: Array
  right: Array


@functools.cache
def gear(bits: int = 4, rank: int = 4, outliers: float = 0.02) -> CacheKind:
  """LOSSY: keys and values in 2 or 4 bits, with a correction of low rank and some outliers.

  Kang et al. 2024, arXiv 2403.05527. In blocks of 64 rows, a vector is a channel's keys over the
  rows, or a row's values over the channels. Its largest and smallest entries are kept whole, and
  their mean stands in their place while the vector is rounded to evenly spaced levels. What is lost
  is approximated by a product of two thin matrices per head, found by power iteration. The newest
  rows, 63 at most between rounds, are whole.

  Measured: perplexity 19.628 for 19.540 (caches)

  Args:
    bits: 2 or 4.
    rank: r, columns of the thin matrices.
    outliers: the share of a vector that is kept whole, half of it the largest entries; one of each
      at least, unless it is 0.

  Raises:
    ValueError: other bits, a rank below 1, or a share that is not at least 0 and below 1.
  """
  if bits not in (2, 4) or rank < 1 or not 0 <= outliers < 1:
    raise ValueError(
      "`bits` must be 2 or 4, `rank` at least 1, and `outliers` at least 0 and below 1, got "
      f"{bits}, {rank} and {outliers}."
    )
  codes_per_byte, levels = 8 // bits, 2**bits - 1
  shifts = np.arange(codes_per_byte, dtype=np.uint8) * np.uint8(bits)

  def one(x: Array) -> Geared:
    """x f32[.., m, n]."""
    n = x.shape[-1]
    count = max(1, round(outliers * n / 2)) if outliers else 0
    order = jnp.argsort(x, axis=-1)
    place = jnp.concatenate([order[..., :count], order[..., n - count :]], -1)
    entries = jnp.take_along_axis(x, place, -1)
    whole = jax.nn.one_hot(place, n, dtype=bool).any(-2)
    mean = x.mean(-1, keepdims=True)
    x = x - jnp.where(whole, x - mean, 0)
    low, high = x.min(-1).astype(jnp.float16), x.max(-1)
    step = ((high - low.astype(jnp.float32)) / levels).astype(jnp.float16)
    base, size = low.astype(jnp.float32)[..., None], step.astype(jnp.float32)[..., None]
    codes = jnp.round((x - base) / jnp.where(size > 0, size, 1))
    codes = jnp.clip(codes, 0, levels)
    lost = jnp.where(whole, 0, x - (base + codes * size))
    left, right = _thin(lost, min(rank, *x.shape[-2:]))
    codes = codes.astype(jnp.uint8).reshape(*x.shape[:-1], -1, codes_per_byte)
    packed_codes = (codes << jnp.broadcast_to(shifts, codes.shape)).sum(-1, dtype=jnp.uint8)
    return Geared(
      packed_codes,
      low,
      step,
      place.astype(jnp.uint8),
      entries.astype(jnp.float16),
      left.astype(jnp.float16),
      right.astype(jnp.float16),
    )

  def restored(x: Geared) -> Array:
    """f32[.., m, n]."""
    f32 = jnp.float32
    codes = x.codes[..., None] >> jnp.broadcast_to(shifts, (*x.codes.shape, codes_per_byte))
    codes = codes & jnp.uint8(levels)
    codes = codes.reshape(*x.codes.shape[:-1], -1).astype(f32)
    values = x.low.astype(f32)[..., None] + codes * x.step.astype(f32)[..., None]
    values = values + jnp.einsum("...mr,...nr->...mn", x.left.astype(f32), x.right.astype(f32))
    own = jax.nn.one_hot(x.place, values.shape[-1], dtype=bool)
    entries = jnp.where(own, x.entries.astype(f32)[..., None], 0).sum(-2)
    return jnp.where(own.any(-2), entries, values)

  def pack(k: Array, v: Array) -> tuple[Geared, Geared]:
    f32 = jnp.float32
    return one(k.astype(f32).swapaxes(-1, -2)), one(v.astype(f32))

  def unpack(block: tuple[Geared, Geared], width: int) -> tuple[Array, Array]:
    k, v = map(restored, block)
    return k.swapaxes(-1, -2), v

  return packed("gear", pack, unpack, rows=ROWS)


def _thin(x: Array, rank: int) -> tuple[Array, Array]:
  """(left [.., m, r], right [.., n, r]) whose product is near x f32[.., m, n]."""
  right = jax.random.normal(new_key(0), (x.shape[-1], rank))
  right = jnp.broadcast_to(right, (*x.shape[:-2], *right.shape))
  for _ in range(SWEEPS):
    left = _orthonormal(jnp.einsum("...mn,...nr->...mr", x, right))
    right = jnp.einsum("...mn,...mr->...nr", x, left)
  return left, right


def _orthonormal(x: Array) -> Array:
  """The columns of x [.., m, r] made orthonormal one after the other (Gram and Schmidt).

  There are so few that this is faster than a general decomposition.
  """
  done: list[Array] = []
  for i in range(x.shape[-1]):
    column = x[..., i]
    for other in done:
      column = column - other * (other * column).sum(-1, keepdims=True)
    size = jnp.sqrt((column * column).sum(-1, keepdims=True))
    done.append(column / jnp.maximum(size, 1e-12))
  return jnp.stack(done, -1)
