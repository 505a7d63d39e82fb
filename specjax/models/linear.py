"""Products of any kind of weight, as networks write them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.kernels import skinny
from specjax.kernels.platform import platform
from specjax.models import bfloat16, groups, int8, panels
from specjax.models.bfloat16 import Bfloat16
from specjax.models.groups import Groups
from specjax.models.int8 import Int8
from specjax.models.lora import Gated, weight
from specjax.models.panels import Panels
from specjax.models.products import product, turned
from specjax.models.weights import Matrix, dense


def linear(x: Array, w: Matrix | Gated) -> Array:
  """x [..., in] times w [out, in] -> [..., out]."""
  if isinstance(w, Int8):
    return int8.product(x, w)
  if isinstance(w, Bfloat16):
    return bfloat16.product(x, w)
  if isinstance(w, Panels):
    if skinny.serves_few_bits(x):
      return panels.product(x, w)
    w = panels.unpacked(w)
  if isinstance(w, Groups):
    if groups.is_served(x, w):
      return groups.product(x, w)
    return linear(groups.rounded(x) if w.rounds else x, groups.dense(w))
  if isinstance(w, Gated):
    return _gated(x, w)
  if w.dtype == jnp.bfloat16 and platform() == "cpu":
    return _in_bfloat16(x, w)
  return product(x, w, x.dtype)


@jax.custom_vjp
def _in_bfloat16(x: Array, w: Array) -> Array:
  """`linear` of bfloat16 on CPU; it and its gradients are summed in float32.

  Sums in bfloat16 take up to 8 times as long there, and so does a gradient of float32 sums, whose
  operands differ in dtype.
  """
  return product(x, w, jnp.float32).astype(x.dtype)


def _forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
  return _in_bfloat16(x, w), (x, w)


def _backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
  x, w = saved
  rows, of_rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
  dot = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)
  dx = dot(of_rows, w, (((1,), (0,)), ((), ())))
  dw = dot(turned(of_rows), rows, (((1,), (0,)), ((), ())))
  return dx.astype(x.dtype).reshape(x.shape), dw.astype(w.dtype)


_in_bfloat16.defvjp(_forward, _backward)


def _gated(x: Array, w: Gated) -> Array:
  """x [..., N, in] times w [out, in], whose update is for the rows from number `first` on."""
  y, own = linear(x, w.weight), x[..., w.first :, :]
  down, up = (dense(part).astype(x.dtype) for part in (w.down, w.up))
  update = linear(linear(own, down), up)
  if w.first == 0:  # all rows: in training one that is not finite has to show
    return y + update
  rows = y[..., w.first :, :] + update
  # A row that is not finite would reach the others: hidden columns weigh 0, and 0 * NaN is NaN.
  rows = jnp.where(jnp.isfinite(rows), rows, 0)
  return jnp.concatenate([y[..., : w.first, :], rows], -2)


class Fused(NamedTuple):
  """Weights that multiply one input: one array [sum of `rows` (static), ...], or an array each.

  Those of a product may be `Bfloat16`, `Int8`, `Groups`, `Panels` or `Gated`.
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


def take(w: Matrix, ids: Array) -> Matrix:
  """The rows [..., E] of w [V, E] at ids i32[...]."""
  if isinstance(w, Bfloat16):
    return w.take(ids)
  if isinstance(w, Panels):
    return panels.packed(w.rows(ids))
  return jax.tree.map(lambda x: jnp.take(x, ids, axis=0), w)


def lookup(w: Matrix, ids: Array) -> Array:
  """The values of the rows [..., E] of w [V, E] at ids i32[...]."""
  return dense(w.rows(ids) if isinstance(w, Panels) else take(w, ids))
