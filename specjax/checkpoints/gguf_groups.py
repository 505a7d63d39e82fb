"""Tensors of GGUF files in their own bits: blocks of ggml's kinds as `models.groups.Groups`.

Nothing is rounded: a `Groups` has the block's own numbers, scales and offsets, each in a row of its
own. The layouts are those of ggml's `ggml-common.h`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from jax.typing import DTypeLike

from specjax.models.groups import Groups, pack

_K = 256  # numbers of a block of the kinds with K in their names
_TIMES = np.uint8(4)


def _cut(blocks: np.ndarray, *sizes: int) -> list[np.ndarray]:
  """The fields of blocks u8[..., bytes], of so many bytes each; the rest is the last one."""
  return np.split(blocks, np.cumsum(sizes), -1)


def _half(field: np.ndarray) -> np.ndarray:
  """f16[...]: a field of two bytes."""
  return np.ascontiguousarray(field).view(np.float16)[..., 0]


def _nibbles(field: np.ndarray, run: int) -> np.ndarray:
  """u8[..., numbers]: runs of bytes, each with its low halves, then its high ones."""
  runs = field.reshape(*field.shape[:-1], -1, 1, run)
  return np.concatenate([runs & 15, runs >> 4], -2).reshape(*field.shape[:-1], -1)


def _fifth(field: np.ndarray) -> np.ndarray:
  """u8[..., 32]: the bits of 4 bytes, in their place above a nibble."""
  return np.unpackbits(field, axis=-1, bitorder="little") << _TIMES


def _steps(field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """u8[..., 8] each: steps of scales and of offsets, in 6 bits; the last four lie in two pieces."""
  a, b, c = np.split(field, 3, -1)
  scales = np.concatenate([a & 63, c & 15 | a >> 2 & 48], -1)
  return scales, np.concatenate([b & 63, c >> 4 | b >> 2 & 48], -1)


# From blocks u8[O, blocks of a row, bytes]: numbers, and the fields of a Groups by name.
_Fields = dict[str, np.ndarray]


def _q4_0(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, low = _cut(blocks, 2)
  return _nibbles(low, 16), {"scale": _half(scale)}


def _q4_1(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, offset, low = _cut(blocks, 2, 2)
  return _nibbles(low, 16), {"scale": _half(scale), "offset": _half(offset)}


def _q5_0(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, high, low = _cut(blocks, 2, 4)
  return _nibbles(low, 16) | _fifth(high), {"scale": _half(scale)}


def _q5_1(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, offset, high, low = _cut(blocks, 2, 2, 4)
  numbers = _nibbles(low, 16) | _fifth(high)
  return numbers, {"scale": _half(scale), "offset": _half(offset)}


def _q8_0(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, numbers = _cut(blocks, 2)
  return numbers, {"scale": _half(scale)}


def _stepped(scale: np.ndarray, offset: np.ndarray, steps: np.ndarray) -> _Fields:
  of_scale, of_offset = _steps(steps)
  return {"scale": _half(scale), "offset": -_half(offset), "scale_steps": of_scale,
          "offset_steps": of_offset}  # fmt: skip


def _q4_k(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, offset, steps, low = _cut(blocks, 2, 2, 12)
  return _nibbles(low, 32), _stepped(scale, offset, steps)


def _q5_k(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  scale, offset, steps, high, low = _cut(blocks, 2, 2, 12, 32)
  # Byte i has the fifth bits of number i of each of the eight groups.
  fifth = np.unpackbits(high[..., None, :], axis=-2, bitorder="little") << _TIMES
  return _nibbles(low, 32) | fifth.reshape(*fifth.shape[:-2], _K), _stepped(scale, offset, steps)


def _q6_k(blocks: np.ndarray) -> tuple[np.ndarray, _Fields]:
  low, high, steps, scale = _cut(blocks, 128, 64, 16)
  # Of each 128 numbers byte i of 32 has the two upper bits of number i of four groups.
  runs = high.reshape(*high.shape[:-1], 2, 1, 32)
  shift = np.array([0, 2, 4, 6], np.uint8)[:, None]
  upper = (runs >> shift & 3).reshape(*high.shape[:-1], _K) << _TIMES
  return _nibbles(low, 64) | upper, {"scale": _half(scale), "scale_steps": steps}


# By kind: bits of a number, the number that is worth 0, and the reader of blocks.
_KINDS: dict[Kind, tuple[int, int, Callable[[np.ndarray], tuple[np.ndarray, _Fields]]]] = {
  Kind.Q4_0: (4, 8, _q4_0), Kind.Q4_1: (4, 0, _q4_1), Kind.Q5_0: (5, 16, _q5_0),
  Kind.Q5_1: (5, 0, _q5_1), Kind.Q8_0: (8, 0, _q8_0), Kind.Q4_K: (4, 0, _q4_k),
  Kind.Q5_K: (5, 0, _q5_k), Kind.Q6_K: (6, 32, _q6_k),
}  # fmt: skip


FLOATS = (Kind.F32, Kind.F16, Kind.BF16)
HELD = ", ".join(kind.name for kind in _KINDS)
"""The kinds that `groups` holds, for messages."""


def is_held(kind: Kind) -> bool:
  """Whether `groups` holds tensors of a kind."""
  return kind in _KINDS


def groups(data: np.ndarray, kind: Kind, dtype: DTypeLike) -> Groups:
  """A matrix of blocks u8[O, bytes of a row] of a kind; its products are made in a dtype."""
  bits, zero, read = _KINDS[kind]
  O, (_, size) = len(data), GGML_QUANT_SIZES[kind]
  numbers, fields = read(np.asarray(data).reshape(O, -1, size))
  numbers = numbers.reshape(O, -1)
  if bits == 8:
    low, high = numbers.view(np.int8), np.zeros((O, 0), np.uint32)
  else:
    low, high = pack(numbers, bits)
  held = {"scale": np.float16, "offset": np.float16, "scale_steps": np.int8,
          "offset_steps": np.int8}  # fmt: skip
  others: dict[str, Any] = {
    name: jnp.asarray(fields[name].reshape(O, -1).view(of))
    if name in fields
    else jnp.zeros((O, 0), of)
    for name, of in held.items()
  }
  return Groups(
    low=jnp.asarray(low), high=jnp.asarray(high), **others, zero=zero, dtype=jnp.dtype(dtype)
  )
