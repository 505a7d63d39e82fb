"""Weights in bfloat16 under wider arithmetic: half the memory, and products in hardware.

Checkpoints are mostly published in bfloat16, so that their weights lose nothing. `linear` and
`lookup` take a `Bfloat16` wherever they take an array, so networks do not mention it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.kernels.platform import platform
from specjax.models import products


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bfloat16:
  """A matrix [..., out, in], or a stack of them.

  Attributes:
    rows: bf16[..., out, in].
    dtype: that of the arithmetic (static).
    bits: u16[..., out, in], the rows as whole numbers, for lookups on CPUs: XLA has no gather of
      bfloat16 there, and would widen the whole matrix in every call. None for other matrices.
  """

  rows: Array
  dtype: np.dtype = dataclasses.field(metadata={"static": True})
  bits: Array | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    return self.rows.shape

  def __getitem__(self, key) -> "Bfloat16":
    """Some of the outputs, or one of the stack."""
    return Bfloat16(self.rows[key], self.dtype, None if self.bits is None else self.bits[key])

  def take(self, ids: Array) -> "Bfloat16":
    """The rows [..., in] at ids i32[...] of w [out, in]."""
    if self.bits is None:
      return Bfloat16(jnp.take(self.rows, ids, axis=0), self.dtype)
    bits = jnp.take(self.bits, ids, axis=0)
    return Bfloat16(lax.bitcast_convert_type(bits, jnp.bfloat16), self.dtype)


def rounded(x: np.ndarray | Array, dtype: np.dtype, looked_up: bool = False) -> Bfloat16:
  """x [..., out, in] to the nearest bfloat16; rows are `looked_up` of an embedding."""
  rows = jnp.asarray(x.astype(jnp.bfloat16))
  twice = looked_up and platform() == "cpu"
  return Bfloat16(rows, dtype, lax.bitcast_convert_type(rows, jnp.uint16) if twice else None)


def product(x: Array, w: Bfloat16) -> Array:
  """x [..., in] times w [out, in] -> [..., out], summed in float32.

  Each row of x becomes two of bfloat16: the nearest one, and what it leaves, so that a number of x
  is known to 2^-18 of itself. One row of bfloat16 would be known to 2^-9, and a tree of nodes would
  break ties in another way than plain decoding. A row's product does not depend on the rows beside
  it.
  """
  flat = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
  near = lax.reduce_precision(flat, exponent_bits=8, mantissa_bits=7)  # a cast and back is dropped
  both = jnp.concatenate([near, flat - near]).astype(jnp.bfloat16)
  y, rest = jnp.split(products.product(both, w.rows, jnp.float32), 2)
  return (y + rest).astype(x.dtype).reshape(*x.shape[:-1], -1)
