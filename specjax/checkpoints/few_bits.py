"""Matrices in few bits as files of safetensors have them: whole numbers, zeros and scales.

Their values are (number - zero) * scale. The formats differ in how they pack these.

Letters: O outputs, K inputs, N groups of inputs, X experts.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax.checkpoints.stored import room
from specjax.models.groups import GROUP, Groups, concatenate, pack

_AT_ONCE = 2**18  # numbers that are widened at once


class Numbers(NamedTuple):
  """A matrix [O, K] or a stack of them [X, O, K].

  Attributes:
    numbers: u8[..., O, K].
    bits: of a number: 4, 5 or 8.
    zero: i16[..., O, N], the number that is worth 0; or [..., 1, 1].
    scale: float[..., O, N].
    group: i[K], of each input.
  """

  numbers: np.ndarray
  bits: int
  zero: np.ndarray
  scale: np.ndarray
  group: np.ndarray


class Few(NamedTuple):
  """A tensor whose values few bits say.

  Attributes:
    shape: that of the values, as a file of floats has them.
    files: the tensors on disk that it is made of, some of which may be absent.
    values: gives them [..., O, K] in a dtype.
    numbers: gives what they are made of; None where these are no whole numbers.
    turned: whether files of floats have [..., K, O].
  """

  shape: tuple[int, ...]
  files: tuple[str, ...]
  values: Callable[[DTypeLike], np.ndarray]
  numbers: Callable[[], Numbers] | None
  turned: bool = False

  def read(self, dtype: DTypeLike) -> np.ndarray:
    """The values of `shape` in a dtype."""
    found = self.values(dtype)
    return found.swapaxes(-1, -2) if self.turned else found


def of_numbers(
  shape: tuple[int, ...], files: tuple[str, ...], read: Callable[[], Numbers], turned: bool = False
) -> Few:
  """A tensor of whole numbers, which `read` gives."""
  return Few(shape, files, lambda dtype: values(read(), dtype), read, turned)


def groups_of(inputs: int, size: int) -> np.ndarray:
  """i[K]: the group of each input, of so many each."""
  return np.arange(inputs) // size


def by_rows(
  shape: tuple[int, ...], dtype: DTypeLike, some: Callable[[slice], np.ndarray]
) -> np.ndarray:
  """[..., O, K] in a dtype, of which `some` gives rows of all but the last axis in float32.

  A float32 copy of the whole would be most of the memory of loading.
  """
  *outer, K = shape
  rows = int(np.prod(outer))
  found = room((rows, K), dtype)
  few = max(1, _AT_ONCE // K)
  for first in range(0, rows, few):
    part = slice(first, first + few)
    found[part] = some(part)
  return found.reshape(shape)


def values(n: Numbers, dtype: DTypeLike) -> np.ndarray:
  """The values [..., O, K] in a dtype; they are rounded once from float32, where they are exact
  for scales of 16 bits."""
  shape, columns = n.numbers.shape, n.scale.shape[-1]
  numbers = n.numbers.reshape(-1, shape[-1])
  scale = n.scale.reshape(-1, columns)
  zero = np.broadcast_to(n.zero, n.scale.shape).reshape(-1, columns)

  def some(rows: slice) -> np.ndarray:
    centred = numbers[rows].astype(np.float32) - zero[rows].astype(np.float32)[:, n.group]
    return centred * scale[rows].astype(np.float32)[:, n.group]

  return by_rows(shape, dtype, some)


def groups(n: Numbers, dtype: DTypeLike) -> Groups | None:
  """The same values, 32 inputs with a scale; None where they would be others.

  That is so where 32 inputs are of several groups, for scales that are no float16, and for zeros
  that differ and do not fit in 8 bits.
  """
  shape, K = n.numbers.shape, n.numbers.shape[-1]
  if K % GROUP:
    return None
  lines = n.group.reshape(-1, GROUP)
  with np.errstate(over="ignore"):
    scale = n.scale.astype(np.float16)
  kept = np.array_equal(scale.astype(np.float32), n.scale.astype(np.float32))
  if not kept or (lines != lines[:, :1]).any():
    return None
  line, numbers = lines[:, 0], n.numbers.reshape(-1, K)
  middle = 128 if n.bits == 8 else 0  # numbers of 8 bits have a sign
  zero, fixed = n.zero - middle, int(n.zero.flat[0]) - middle
  none = np.zeros((*shape[:-1], 0), np.int8)
  held: dict[str, Any] = {
    "scale": scale[..., line], "offset": none.astype(np.float16), "scale_steps": none,
    "offset_steps": none,
  }  # fmt: skip
  if (zero != fixed).any():
    if zero.min() < -127 or zero.max() > 128:
      return None
    fixed = 0
    steps = np.broadcast_to(-zero, scale.shape).astype(np.int8)
    held |= {"offset": held["scale"], "offset_steps": steps[..., line]}
  if middle:
    low, high = (numbers ^ 128).view(np.int8), none.astype(np.uint32)
  else:
    low, high = (x.reshape(*shape[:-1], -1) for x in pack(numbers, n.bits))
  held |= {"low": low.reshape(*shape[:-1], -1), "high": high}
  arrays: dict[str, Any] = {name: jnp.asarray(x) for name, x in held.items()}
  return Groups(**arrays, zero=fixed, dtype=jnp.dtype(dtype))


def stacked(parts: Sequence[Groups], each: int) -> Groups | None:
  """[X, O, K] of X matrices of so many parts each; None where they lie in different ways."""
  whole = concatenate(parts)
  if whole is None:
    return None
  X = len(parts) // each
  return jax.tree.map(lambda x: x.reshape(X, len(x) // X, *x.shape[1:]), whole)


def unpacked(words: np.ndarray, bits: int, order: tuple[int, ...] = ()) -> np.ndarray:
  """u8[..., 32 / bits * n] of words i32[..., n], the lowest bits first; in 4 or 8 bits.

  `order` says which numbers the bits of a word are, where they are in another order.
  """
  data = np.ascontiguousarray(words).view(np.uint8)
  if bits == 4:
    data = np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1)
  if not order:
    return data
  parts = data.reshape(*data.shape[:-1], -1, len(order))
  found = np.empty_like(parts)
  found[..., list(order)] = parts
  return found.reshape(data.shape)


table = functools.cache(lambda kind: np.arange(256, dtype=np.uint8).view(kind).astype(np.float32))
"""f32[256]: what bytes of a dtype of 8 bits are worth."""
