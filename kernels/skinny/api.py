"""Products of a few rows: which ones are served, and their call."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from specjax.kernels import compiled
from specjax.kernels.platform import platform

ROWS = 32  # more fill XLA's tiles


def serves(x: Array, w: Array, dtype: DTypeLike) -> bool:
  """Whether `product` takes x [..., K] and w [O, K] with sums in a dtype.

  It does for one CPU alone: of several devices each may hold a part, and XLA cannot cut a call.
  Where there is no compiler, it takes nothing.
  """
  few = x.size <= ROWS * x.shape[-1]
  return w.dtype == dtype == jnp.float32 and w.size > 0 and few and serves_few_bits(x)


def serves_few_bits(x: Array) -> bool:
  """Whether `group_product` and `rounded_product` take x [..., K], of any number of rows.

  The matrix must have values of float32.
  """
  return x.dtype == jnp.float32 and x.size > 0 and available()


def available() -> bool:
  """Whether there are such products at all: for one CPU and where there is a compiler."""
  return platform() == "cpu" and jax.device_count() == 1 and compiled.available()


@jax.custom_jvp
def product(x: Array, w: Array) -> Array:
  """x f32[R, K] times w f32[O, K] -> f32[R, O].

  A row's result does not depend on the rows beside it, bit for bit, nor on how many they are.
  Derivatives are XLA's.
  """
  return jax.ffi.ffi_call(compiled.FLOATS, _outputs(x, w), vmap_method="sequential")(x, w)


@product.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]):
  (x, w), (dx, dw) = primals, tangents
  contract = (((1,), (1,)), ((), ()))
  y = lax.dot_general(dx, w, contract) + lax.dot_general(x, dw, contract)
  return product(x, w), y


def group_product(
  x: Array,
  low: Array,
  high: Array,
  scale: Array,
  offset: Array,
  scale_steps: Array,
  offset_steps: Array,
  zero: int,
) -> Array:
  """x f32[R, K] times the values f32[O, K] of a `models.groups.Groups` -> f32[R, O].

  It is `product` of the values, bit for bit, of any number of rows: the matrix is widened once for
  all of them. It has no derivatives.
  """
  call = jax.ffi.ffi_call(compiled.GROUPS, _outputs(x, low), vmap_method="sequential")
  return call(x, low, high, scale, offset, scale_steps, offset_steps, zero=np.int64(zero))


def rounded_product(
  x: Array,
  low: Array,
  high: Array,
  scale: Array,
  offset: Array,
  scale_steps: Array,
  offset_steps: Array,
  zero: int,
  outputs: int,
) -> Array:
  """x f32[R, K], each 32 rounded to 8 bits, times a `models.panels.Panels` of [O, K] -> f32[R, O].

  Rows may be any number, and a row's result does not depend on it, bit for bit. Products of whole
  numbers are summed exactly. It has no derivatives.
  """
  shape = jax.ShapeDtypeStruct((x.shape[0], outputs), jnp.float32)
  call = jax.ffi.ffi_call(compiled.ROUNDED, shape, vmap_method="sequential")
  return call(x, low, high, scale, offset, scale_steps, offset_steps, zero=np.int64(zero))


def _outputs(x: Array, w: Array) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), jnp.float32)
