"""Products of rows and a weight: the one place that decides how they are laid out."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from specjax.kernels import skinny
from specjax.kernels.platform import platform


def product(x: Array, w: Array, dtype: DTypeLike) -> Array:
  """x [..., in] times w [out, in] of one dtype -> [..., out], summed in another.

  On one CPU up to 32 rows of float32 go to `kernels.skinny` where a compiler has made it. Elsewhere
  on CPU the weight is the left operand where there are few rows, and the small result is
  transposed: up to three times as fast for 2 to 32 rows of float32, a third for narrower numbers.
  One row is a matrix-vector product either way, for which XLA's one of bfloat16 takes 8 times as
  long as a product of 2 rows. 5 to 15 rows of float32 are filled up to 8 or 16: its kernel has
  columns of 8, and 15 rows take 1.3 times as long as 16.
  """
  if skinny.serves(x, w, dtype):
    return skinny.product(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[0])
  R, wide = x.size // x.shape[-1], w.dtype.itemsize >= 4
  few = (2 if wide else 1) <= R <= (64 if wide else 32)
  if platform() == "cpu" and few:
    fill = -R % 8 if wide and 4 < R < 16 else int(R == 1)
    filled = jnp.pad(x.reshape(R, -1), ((0, fill), (0, 0)))
    y = lax.dot_general(w, filled, (((1,), (1,)), ((), ())), preferred_element_type=dtype)
    # Without the barrier XLA folds the transpose into the product and swaps the operands back.
    return lax.optimization_barrier(y).T[:R].reshape(*x.shape[:-1], w.shape[0])
  contract = (((x.ndim - 1,), (1,)), ((), ()))
  return lax.dot_general(x, w, contract, preferred_element_type=dtype)


def turned(x: Array) -> Array:
  """x [..., R, C] -> [..., C, R], which is to be multiplied by columns [..., R, D].

  On CPU bfloat16 is laid out anew: otherwise XLA turns the product around, widens both operands and
  takes 3 times as long. On a mesh of CPUs that would gather them.
  """
  y = x.swapaxes(-1, -2)
  if x.dtype == jnp.bfloat16 and platform() == "cpu" and jax.device_count() == 1:
    y = with_layout_constraint(y, Layout(tuple(range(y.ndim))))
  return y


def wide(*arrays: Array) -> list[Array]:
  """For products that share three axes, of which XLA on CPU has none of 16 bits."""
  return [x.astype(jnp.float32) if platform() == "cpu" else x for x in arrays]
