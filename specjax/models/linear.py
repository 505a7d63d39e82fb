"""Matrix products: the one place that decides how they are laid out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.kernels.platform import platform
from specjax.models.int8 import Int8, dense, product
from specjax.models.lora import Gated, weight


def linear(x: Array, w: Array | Int8 | Gated) -> Array:
  """x [..., in] times w [out, in] -> [..., out].

  On CPU the weight is the left operand when there are few rows, and the small result is
  transposed, which is two to three times as fast for 2 to 32 rows. One row is a matrix-vector
  product either way. 5 to 15 rows are filled up to 8 or 16: XLA's kernel has columns of 8, and 15
  rows take 1.3 times as long as 16.
  """
  if isinstance(w, Int8):
    return product(x, w)
  if isinstance(w, Gated):
    return _gated(x, w)
  rows = x.size // x.shape[-1]
  if platform() == "cpu" and 1 < rows <= 64:
    fill = -rows % 8 if 4 < rows < 16 else 0
    filled = jnp.pad(x.reshape(rows, -1), ((0, fill), (0, 0)))
    y = lax.dot_general(w, filled, (((1,), (1,)), ((), ())))
    # Without the barrier XLA folds the transpose into the product and swaps the operands back.
    return lax.optimization_barrier(y).T[:rows].reshape(*x.shape[:-1], w.shape[0])
  return lax.dot_general(x, w, (((x.ndim - 1,), (1,)), ((), ())))


def _gated(x: Array, w: Gated) -> Array:
  """x [..., N, in] times w [out, in], whose update is for the rows from number `first` on."""
  y, own = linear(x, w.weight), x[..., w.first :, :]
  update = linear(linear(own, w.down.astype(x.dtype)), w.up.astype(x.dtype))
  rows = y[..., w.first :, :] + update
  # A row that is not finite would reach the others: hidden columns weigh 0, and 0 * NaN is NaN.
  rows = jnp.where(jnp.isfinite(rows), rows, 0)
  return jnp.concatenate([y[..., : w.first, :], rows], -2)


class Fused(NamedTuple):
  """Weights that multiply one input: one array [sum of `rows` (static), ...], or an array each.

  Those of a product may be `Int8` or `Gated`.
  """

  rows: tuple[int, ...]
  weights: tuple[Any, ...]

  def parts(self, first: int = 0) -> list[Array]:
    """The weights, from number `first` (static) on."""
    if len(self.weights) > 1:
      return list(self.weights[first:])
    return jnp.split(self.weights[0], np.cumsum(self.rows)[:-1])[first:]

  def linear(self, x: Array, first: int = 0) -> list[Array]:
    """x [..., in] times each weight from number `first` (static) on, in one product if possible."""
    if len(self.weights) > 1:
      return [linear(x, w) for w in self.weights[first:]]
    y = linear(x, self.weights[0][sum(self.rows[:first]) :])
    return jnp.split(y, np.cumsum(self.rows[first:])[:-1], axis=-1)


def fused(
  module: nn.Module, name: str, rows: dict[str, int], init: Callable, *inputs: int
) -> Fused:
  """The weight `name` of a module, or its parts where the params hold them apart."""
  if module.has_variable("params", next(iter(rows))):
    weights = [weight(module, part, init, (size, *inputs)) for part, size in rows.items()]
  else:
    weights = [weight(module, name, init, (sum(rows.values()), *inputs))]
  return Fused(tuple(rows.values()), tuple(weights))


def linear_each(x: Array, w: Array) -> Array:
  """M products at once: x [B, M, in] with w [M, out, in] -> [B, M, out].

  In one batched product all cores read weights; in M products of one row, one core does. One
  product is 2.5 times as fast for four vocabularies and one row on two cores.
  """
  if platform() == "cpu" and x.shape[0] <= 64:
    y = lax.dot_general(w, x, (((2,), (2,)), ((0,), (1,))))
    return lax.optimization_barrier(y).transpose(2, 0, 1)
  return lax.dot_general(x, w, (((2,), (2,)), ((1,), (0,)))).swapaxes(0, 1)


def take(w: Array | Int8, ids: Array) -> Array | Int8:
  """The rows [..., E] of w [V, E] at ids i32[...]."""
  return jax.tree.map(lambda x: jnp.take(x, ids, axis=0), w)


def lookup(w: Array | Int8, ids: Array) -> Array:
  """The values of the rows [..., E] of w [V, E] at ids i32[...]."""
  return dense(take(w, ids))
