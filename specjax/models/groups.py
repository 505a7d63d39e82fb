"""Weights in 4 to 8 bits: whole numbers with a scale, and perhaps an offset, for 16 or 32 inputs.

That is how GGUF files hold matrices, and a `Groups` holds the same numbers in as many bits.
`linear` and `lookup` take it wherever they take an array, so networks do not mention it. Products
are those of the values, which are float32; what they multiply may be rounded to 8 bits before,
which is another model, of quicker products.

Letters: O outputs, K inputs, a multiple of 32; P bits of a number beside its low 4.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from specjax.kernels import skinny
from specjax.models.int8 import Int8

GROUP = 32  # numbers whose low bits lie together


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Groups:
  """A matrix [O, K] of values scale * scale_steps * (number - zero) + offset * offset_steps.

  What is absent has 0 columns: then a step counts 1, and an offset 0.

  Attributes:
    low: u8[O, K / 2], the low 4 bits of numbers: byte i of a group of 32 has those of its numbers i
      and 16 + i. Or i8[O, K], numbers of 8 bits.
    high: u32[O, P K / 32], the other bits of numbers: P words for 32 numbers, the lower bits first.
    scale, offset: f16[O, ...], for as many columns alike.
    scale_steps, offset_steps: i8[O, ...], for as many columns alike.
    zero: the number that is worth 0 (static).
    dtype: that of the arithmetic (static).
    rounds: whether what it multiplies is `rounded` first (static).
  """

  low: Array
  high: Array
  scale: Array
  offset: Array
  scale_steps: Array
  offset_steps: Array
  zero: int = dataclasses.field(metadata={"static": True})
  dtype: np.dtype = dataclasses.field(metadata={"static": True})
  rounds: bool = dataclasses.field(default=False, metadata={"static": True})

  @property
  def shape(self) -> tuple[int, ...]:
    *others, columns = self.low.shape
    return *others, columns if self.low.dtype == jnp.int8 else 2 * columns

  def __getitem__(self, key) -> "Groups":
    """Some of the outputs."""
    return jax.tree.map(lambda x: x[key], self)


def pack(numbers: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
  """`low` and `high` of numbers u8[O, K] of 4, 5 or 6 bits."""
  parts = numbers.reshape(len(numbers), -1, GROUP)
  low = parts & 15
  low = low[..., :16] | low[..., 16:] << 4
  planes = [np.packbits(parts >> b & 1, axis=-1, bitorder="little") for b in range(4, bits)]
  high = np.stack(planes, 2) if planes else np.zeros((*parts.shape[:2], 0, 4), np.uint8)
  return low.reshape(len(numbers), -1), high.reshape(len(numbers), -1).view(np.uint32)


@functools.partial(jax.jit, static_argnames="dtype")
def quantise(x: Array, dtype: DTypeLike) -> Groups:
  """x [O, K] to the nearest of 16 values, which lie evenly between the extremes of 32 inputs.

  The error is at most half a step, and what float16 takes from the scale and the offset.
  """
  x = x.astype(jnp.float32)
  parts = x.reshape(len(x), -1, GROUP)
  offset = parts.min(-1).astype(jnp.float16)
  least = offset.astype(jnp.float32)
  scale = ((parts.max(-1) - least) / 15).astype(jnp.float16)
  scale = jnp.where(scale == 0, jnp.ones_like(scale), scale)
  steps = jnp.round((parts - least[..., None]) / scale.astype(jnp.float32)[..., None])
  numbers = jnp.clip(steps, 0, 15).astype(jnp.uint8)
  low = numbers[..., : GROUP // 2] | numbers[..., GROUP // 2 :] << 4
  none = jnp.zeros((len(x), 0), jnp.int8)
  return Groups(
    low=low.reshape(len(x), -1),
    high=none.astype(jnp.uint32),
    scale=scale,
    offset=offset,
    scale_steps=none,
    offset_steps=none,
    zero=0,
    dtype=jnp.dtype(dtype),
  )


def of_rows(w: Int8) -> Groups:
  """The same matrix [O, K] of values f32, whose scales are float16, for K a multiple of 32."""
  O, K = w.shape
  none = jnp.zeros((O, 0), jnp.int8)
  return Groups(
    low=w.rows,
    high=none.astype(jnp.uint32),
    scale=jnp.repeat(w.scale.astype(jnp.float16)[:, None], K // GROUP, axis=1),
    offset=none.astype(jnp.float16),
    scale_steps=none,
    offset_steps=none,
    zero=0,
    dtype=jnp.dtype(jnp.float32),
  )


def concatenate(parts: Sequence[Groups]) -> Groups | None:
  """The outputs of all; None where they lie in different ways."""
  layouts = {
    (jax.tree.structure(w), *((x.dtype, x.shape[1:]) for x in jax.tree.leaves(w))) for w in parts
  }
  return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts) if len(layouts) == 1 else None


def dense(w: Groups) -> Array:
  """The values [..., K] in the dtype of the arithmetic; `w` may hold rows of any shape."""
  *rows, K = w.shape

  def wide(x: Array) -> Array:  # for all columns
    return jnp.repeat(x.astype(jnp.float32), K // x.shape[-1], axis=-1)

  if w.low.dtype == jnp.int8:
    numbers = w.low.astype(jnp.int32)
  else:
    halves = w.low.reshape(*rows, K // GROUP, GROUP // 2)
    parts = jnp.concatenate([halves & 15, halves >> 4], -1).astype(jnp.int32)
    bit = jnp.arange(GROUP, dtype=jnp.uint32)
    high = w.high.reshape(*rows, K // GROUP, -1)
    for i in range(high.shape[-1]):
      one = jnp.right_shift(*jnp.broadcast_arrays(high[..., i, None], bit)) & 1
      parts |= one.astype(jnp.int32) << (4 + i)
    numbers = parts.reshape(*rows, K)
  scale = wide(w.scale)
  if w.scale_steps.shape[-1]:
    scale *= wide(w.scale_steps)
  values = (numbers - w.zero).astype(jnp.float32) * scale
  if w.offset.shape[-1]:
    offset = wide(w.offset)
    values += offset * wide(w.offset_steps) if w.offset_steps.shape[-1] else offset
  return values.astype(w.dtype)


def has_groups(params: Any) -> bool:
  """Whether a tree of weights has a `Groups`."""
  leaves = jax.tree.leaves(params, is_leaf=lambda w: isinstance(w, Groups))
  return any(isinstance(w, Groups) for w in leaves)


def with_rounding(params: Any) -> Any:
  """A tree of weights whose every `Groups` rounds what it multiplies; None where it has none."""
  if not has_groups(params):
    return None
  leaves, structure = jax.tree.flatten(params, is_leaf=lambda w: isinstance(w, Groups))
  changed = [dataclasses.replace(w, rounds=True) if isinstance(w, Groups) else w for w in leaves]
  return jax.tree.unflatten(structure, changed)


@jax.custom_jvp
def rounded(x: Array) -> Array:
  """x [..., K] rounded to 8 bits, of each 32 to 127 steps of the largest of them; the error is at
  most half a step. The gradient passes as if nothing were rounded.
  """
  parts = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, GROUP)
  # As bits, which order magnitudes alike: XLA for CPUs may leave NaN out of a maximum of floats.
  bits = lax.bitcast_convert_type(jnp.abs(parts), jnp.int32).max(-1, keepdims=True)
  step = lax.bitcast_convert_type(bits, jnp.float32) * np.float32(1 / 127)
  tiny = jnp.finfo(jnp.float32).tiny
  step = jnp.where(step < tiny, tiny, step)
  return (jnp.round(parts / step) * step).astype(x.dtype).reshape(x.shape)


rounded.defjvps(lambda dx, _, x: dx)


def is_served(x: Array, w: Groups) -> bool:
  """Whether `product` takes x [..., K]: on one CPU rows of float32, none to be rounded.

  Elsewhere XLA widens the matrix first.
  """
  return not w.rounds and w.dtype == jnp.float32 and skinny.serves_few_bits(x)


@jax.custom_jvp
def product(x: Array, w: Groups) -> Array:
  """x [..., K] times w [O, K] -> [..., O], by way of the few bits; the gradient is that of x."""
  fields = (w.low, w.high, w.scale, w.offset, w.scale_steps, w.offset_steps, w.zero)
  return skinny.group_product(x.reshape(-1, x.shape[-1]), *fields).reshape(*x.shape[:-1], -1)


@product.defjvp
def _derivative(primals: tuple[Array, Groups], tangents: tuple[Array, Groups]):
  (x, w), (dx, _) = primals, tangents
  return product(x, w), jnp.matmul(dx, dense(w).T)
