"""Tensors in files, which are read when they are asked for, a part or the whole.

A file is not mapped into memory: pages that are mapped would count beside what was made of them.
"""

import json
import math
import mmap
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from specjax import checks
from specjax.checkpoints import torch_file

_SAFETENSORS, _TORCH = "model.safetensors", "pytorch_model.bin"
# By the names that safetensors has for them; numpy itself has none of 8 bits.
_DTYPES: dict[str, Any] = {
  "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16,
  "F8_E4M3": jnp.float8_e4m3fn, "F8_E8M0": jnp.float8_e8m0fnu, "I64": np.int64, "I32": np.int32,
  "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


_LARGE = 2**16  # bytes


def room(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
  """An array whose memory goes back to the system with it; malloc's would lie between arrays that
  stay, and be kept."""
  dtype, count = jnp.dtype(dtype), math.prod(shape)
  if count * dtype.itemsize < _LARGE:
    return np.empty(shape, dtype)
  return np.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype).reshape(shape)


class Stored(NamedTuple):
  """A tensor in a file.

  Attributes:
    start: its first byte in the file.
    dtype: by safetensors' name, such as "BF16".
    strides: in numbers; None where they lie in order.
  """

  path: pathlib.Path
  start: int
  dtype: str
  shape: tuple[int, ...]
  strides: tuple[int, ...] | None = None

  @property
  def size(self) -> int:
    """Bytes of its numbers."""
    return math.prod(self.shape) * self._dtype.itemsize

  @property
  def _dtype(self) -> np.dtype:
    if self.dtype not in _DTYPES:
      checks.refuse(f"{self.path}: dtype of a tensor", self.dtype, f"one of {', '.join(_DTYPES)}")
    return np.dtype(_DTYPES[self.dtype])

  def read(self, index: tuple[slice, ...] = ()) -> np.ndarray:
    """A part of it; () is the whole. Of a part by its first axis only these rows are read."""
    dtype = self._dtype
    first, stop, rest, row = 0, math.prod(self.shape), index, self.shape
    if self.strides is not None:
      stop = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
    elif index:
      each = math.prod(self.shape[1:])
      a, b, _ = index[0].indices(self.shape[0])
      first, stop, row = a * each, b * each, (b - a, *self.shape[1:])
      rest = (slice(None), *index[1:])
    size, width = (stop - first) * dtype.itemsize, dtype.itemsize
    data = room((size,), np.uint8)
    with open(self.path, "rb") as file:
      file.seek(self.start + first * width)
      if file.readinto(data.data) != size:
        raise ValueError(f"{self.path} is truncated: it ends within a tensor.")
    numbers = data.view(dtype)
    if self.strides is None:
      return numbers.reshape(row)[rest]
    steps = [width * s for s in self.strides]
    return np.lib.stride_tricks.as_strided(numbers, self.shape, steps)[rest]


def of_safetensors(path: pathlib.Path) -> dict[str, Stored]:
  """The tensors of a file of safetensors by name; ValueError where it is damaged."""
  try:
    with safe_open(path, "numpy"):  # which checks what the header says
      pass
    with open(path, "rb") as file:
      size = int.from_bytes(file.read(8), "little")
      header = json.loads(file.read(size))
  except (SafetensorError, OSError) as error:
    raise ValueError(f"{path} is truncated or no safetensors file: {error}.") from error
  return {
    name: Stored(path, 8 + size + x["data_offsets"][0], x["dtype"], tuple(x["shape"]))
    for name, x in header.items()
    if name != "__metadata__"
  }


def of_torch(path: pathlib.Path) -> dict[str, Stored]:
  """The tensors of a file of torch by name; ValueError as of `torch_file.read`."""
  return {name: Stored(path, *found) for name, found in torch_file.read(path).items()}


def shards(index: pathlib.Path) -> list[pathlib.Path]:
  """The files that an index of shards names; ValueError where one is not in the index's folder."""
  raw = checks.read_json(index)
  table = raw.get("weight_map")
  if not isinstance(table, dict) or not table:
    checks.refuse(f"{index}: weight_map", table, "an object of a file for every tensor")
  for shard in table.values():
    # A file may be a link, as in the cache of Hugging Face's hub; its name stays in the folder.
    if not isinstance(shard, str) or shard in ("", "..") or pathlib.PurePath(shard).name != shard:
      checks.refuse(f"{index}: weight_map", shard, "the name of a file in the same folder")
    if not (index.parent / shard).is_file():
      raise ValueError(f"{index} names {shard}, which is not in {index.parent}.")
  return [index.parent / shard for shard in sorted(set(table.values()))]


def of_directory(directory: pathlib.Path) -> Mapping[str, Stored]:
  """The tensors of a model's files, whole or in shards: safetensors, or else torch's."""
  for name, of_file in (_SAFETENSORS, of_safetensors), (_TORCH, of_torch):
    single, index = directory / name, directory / f"{name}.index.json"
    if single.exists() or index.exists():
      files = [single] if single.exists() else shards(index)
      return {key: tensor for file in files for key, tensor in of_file(file).items()}
  raise ValueError(f"{directory} has neither {_SAFETENSORS} nor {_TORCH}, whole or in shards.")
