"""Weights in 4 to 8 bits as `kernels.skinny` multiplies them with rows that are rounded to 8 bits.

16 outputs make a panel, whose numbers for the same inputs lie beside each other: a vector of the
processor holds some of each, so that nothing is laid out anew when they are read.

Letters: O outputs, K inputs, P bits of a number beside its low 4; Q panels of 16 outputs, of which
the last may be filled up.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.kernels import skinny
from specjax.models import groups
from specjax.models.groups import GROUP, Groups

LANES = 16  # outputs of a panel


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Panels:
  """The matrix [O, K] of a `Groups` that rounds what it multiplies.

  Attributes:
    low: u32[Q, K / 32, 4, 16], bytes 4 i to 4 i + 3 of a group of `Groups.low` as word i, and 8
      words where numbers have 8 bits.
    high: u32[Q, P K / 32, 16].
    scale, offset: f16[Q, .., 16].
    scale_steps, offset_steps: i8[Q, .., 16].
    outputs: O (static).
    zero, dtype: as those of `Groups` (static).
  """

  low: Array
  high: Array
  scale: Array
  offset: Array
  scale_steps: Array
  offset_steps: Array
  outputs: int = dataclasses.field(metadata={"static": True})
  zero: int = dataclasses.field(metadata={"static": True})
  dtype: np.dtype = dataclasses.field(metadata={"static": True})

  @property
  def shape(self) -> tuple[int, int]:
    return self.outputs, GROUP * self.low.shape[1]

  def __getitem__(self, outputs: slice) -> "Panels":
    """Some of the outputs; whole panels are not laid out anew."""
    start, stop, step = outputs.indices(self.outputs)
    if step == 1 and start % LANES == 0 and (stop % LANES == 0 or stop == self.outputs):
      own = slice(start // LANES, -(-stop // LANES))
      parts = {name: getattr(self, name)[own] for name in _ARRAYS}
      return dataclasses.replace(self, **parts, outputs=max(stop - start, 0))
    return packed(unpacked(self)[outputs])

  def rows(self, ids: Array) -> Groups:
    """The outputs at ids i32[...], as rows [..., K]."""
    return _groups(self, lambda x: x[ids // LANES, ..., ids % LANES])


_ARRAYS = "low", "high", "scale", "offset", "scale_steps", "offset_steps"


def packed(w: Groups) -> Panels:
  """The same matrix in panels."""
  O, K = w.shape
  fill = -O % LANES
  low = lax.bitcast_convert_type(w.low, jnp.uint8).reshape(O, K // GROUP, -1, 4)
  low = lax.bitcast_convert_type(low, jnp.uint32)

  def panels(x: Array) -> Array:
    whole = jnp.pad(x, ((0, fill), *((0, 0),) * (x.ndim - 1)))
    return jnp.moveaxis(whole.reshape(len(whole) // LANES, LANES, *x.shape[1:]), 1, -1)

  arrays = {name: panels(low if name == "low" else getattr(w, name)) for name in _ARRAYS}
  return Panels(**arrays, outputs=O, zero=w.zero, dtype=w.dtype)


def unpacked(w: Panels) -> Groups:
  """The same matrix, output by output."""

  def rows(x: Array) -> Array:
    return jnp.moveaxis(x, -1, 1).reshape(LANES * len(x), *x.shape[1:-1])[: w.outputs]

  return _groups(w, rows)


def _groups(w: Panels, rows: Callable[[Array], Array]) -> Groups:
  """A `Groups` of what rows(x) gives of each array, the outputs first."""
  arrays = {name: rows(getattr(w, name)) for name in _ARRAYS}
  words = arrays["low"]  # [..., K / 32, 4 or 8]
  eight = words.shape[-1] == 8
  low = lax.bitcast_convert_type(words, jnp.int8 if eight else jnp.uint8)
  arrays["low"] = low.reshape(*words.shape[:-2], 4 * words.shape[-2] * words.shape[-1])
  return Groups(**arrays, zero=w.zero, dtype=w.dtype, rounds=True)


def laid_out(params: Any) -> Any:
  """A tree of weights whose matrices that round are in panels, where their products are served;
  those that are given are used up. Stacks of experts stay as they are.
  """
  if not skinny.available():
    return params

  def each(w: Any) -> Any:
    rounds = isinstance(w, Groups) and w.rounds and w.dtype == jnp.float32
    if not rounds or len(w.shape) > 2:
      return w
    panels = jax.block_until_ready(jax.jit(packed)(w))
    jax.tree.map(lambda x: x.delete(), w)  # or both would fill the memory
    return panels

  return jax.tree.map(each, params, is_leaf=lambda w: isinstance(w, Groups))


@jax.custom_jvp
def product(x: Array, w: Panels) -> Array:
  """x f32[..., K], rounded, times w [O, K] -> [..., O]; the gradient passes as if it were not."""
  fields = (getattr(w, name) for name in _ARRAYS)
  y = skinny.rounded_product(x.reshape(-1, x.shape[-1]), *fields, w.zero, w.outputs)
  return y.reshape(*x.shape[:-1], -1)


@product.defjvp
def _derivative(primals: tuple[Array, Panels], tangents: tuple[Array, Panels]):
  (x, w), (dx, _) = primals, tangents
  return product(x, w), jnp.matmul(dx, groups.dense(unpacked(w)).T)
