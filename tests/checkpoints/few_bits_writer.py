"""Matrices in the formats of others, packed from numbers that are drawn, with their float64 values.

Everything here follows the definitions of the formats; nothing of the package is used.
"""

import math
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Tensors = dict[str, np.ndarray]
Pack = Callable[[np.random.Generator, str, int, int], tuple[Tensors, np.ndarray]]

SIZE = 64  # inputs of a group
E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16


class Format(NamedTuple):
  """One format.

  Attributes:
    config: what config.json says of it.
    pack: (random numbers, name without .weight, O, K) -> its tensors, and the values f64[O, K].
    held: whether "native" holds it.
  """

  config: dict[str, Any]
  pack: Pack
  held: bool = True


def scales(rng, shape, dtype=np.float16) -> np.ndarray:
  return rng.uniform(0.01, 0.04, shape).astype(dtype)


def words(numbers: np.ndarray, bits: int, places=None) -> np.ndarray:
  """i32 words along the last axis: number j of a word at bits * places[j]."""
  each = 32 // bits
  shifts = np.array(places or range(each), np.uint64) * np.uint64(bits)
  parts = numbers.reshape(*numbers.shape[:-1], -1, each).astype(np.uint64)
  return np.bitwise_or.reduce(parts << shifts, -1).astype(np.uint32).view(np.int32)


def wide(x: np.ndarray, count: int) -> np.ndarray:
  """A number for each of `count` inputs, of one for each group."""
  return np.repeat(x.astype(np.float64), count // x.shape[-1], -1)


def awq(rng, base, O, K):
  q, z = rng.integers(0, 16, (O, K)), rng.integers(0, 16, (O, K // SIZE))
  s = scales(rng, z.shape)
  places = (0, 4, 1, 5, 2, 6, 3, 7)  # output j of 8 lies at nibble places[j]
  tensors = {"qweight": words(q.T, 4, places), "qzeros": words(z.T, 4, places), "scales": s.T}
  return named(base, tensors), (q - wide(z, K)) * wide(s, K)


def gptq(bits, less=1, symmetric=False, order=False) -> Pack:
  def pack(rng, base, O, K):
    q = rng.integers(0, 1 << bits, (O, K))
    z = rng.integers(less, 1 << bits, (O, K // SIZE))
    z = np.full_like(z, 1 << (bits - 1)) if symmetric else z
    s, group = scales(rng, z.shape), np.arange(K) // SIZE
    group = rng.permutation(group) if order else group
    tensors = {
      "qweight": words(q, bits).T, "qzeros": words((z - less).T, bits), "scales": s.T,
      "g_idx": group.astype(np.int32),
    }  # fmt: skip
    return named(base, tensors), (q - z[:, group]) * s.astype(np.float64)[:, group]

  return pack


def compressed(bits, columns, zeros=False, order=False) -> Pack:
  """Whole numbers in words; `columns` gives the groups of K inputs."""

  def pack(rng, base, O, K):
    least = -(1 << (bits - 1))
    q, N = rng.integers(least, -least, (O, K)), columns(K)
    z = rng.integers(least, -least, (O, N)) if zeros else np.zeros((O, N), int)
    s, group = scales(rng, (O, N), BF16), np.arange(K) * N // K
    group = rng.permutation(group) if order else group
    tensors = {
      "weight_packed": words(q - least, bits), "weight_scale": s, "weight_shape": np.array([O, K]),
    }  # fmt: skip
    if zeros:
      tensors["weight_zero_point"] = words((z - least).T, bits).T
    if order:
      tensors["weight_g_idx"] = group.astype(np.int32)
    return named(base, tensors), (q - z[:, group]) * s.astype(np.float64)[:, group]

  return pack


def bytes_of_int8(rows, zeros=False) -> Pack:
  def pack(rng, base, O, K):
    q, s = rng.integers(-128, 128, (O, K)), scales(rng, (O, 1) if rows else (1,), BF16) / 16
    z = rng.integers(-20, 20, s.shape) if zeros else np.zeros(s.shape, int)
    tensors = {"weight": q.astype(np.int8), "weight_scale": s, "input_scale": scales(rng, (1,))}
    if zeros:
      tensors["weight_zero_point"] = z.astype(np.int8)
    return named(base, tensors), (q - z) * s.astype(np.float64)

  return pack


def float8(grid, end, dtype=np.float32) -> Pack:
  """Bytes of e4m3; `grid` gives the shape of the scales of a matrix."""

  def pack(rng, base, O, K):
    data = rng.integers(0, 256, (O, K)).astype(np.uint8)
    data[data & 127 == 127] = 0  # NaN
    s = scales(rng, grid(O, K), dtype) / 64
    full = s.astype(np.float64).reshape(*(1,) * (2 - s.ndim), *s.shape)
    for axis, count in enumerate((O, K)):
      each = count if full.shape[axis] == 1 else 1 if full.shape[axis] == count else 128
      full = np.repeat(full, each, axis).take(range(count), axis)
    # The definition of e4m3: a sign, 4 bits of an exponent with bias 7, 3 bits of a fraction.
    sign, high, low = 1 - 2.0 * (data >> 7), (data >> 3 & 15).astype(int), data & 7
    value = np.where(high > 0, (8 + low) * 2.0 ** (high - 10), low * 2.0**-9)
    return named(base, {"weight": data.view(E4M3), end: s}), sign * value * full

  return pack


def mxfp4(rng, base, X, O, K) -> tuple[Tensors, np.ndarray]:
  """Blocks and scales of a stack, whose values are f64[X, K, O], as files of floats have them."""
  low, high = (rng.integers(0, 16, (X, O, K // 32, 16)) for _ in range(2))
  power = rng.integers(120, 126, (X, O, K // 32))
  codes = np.stack([low, high], -1).reshape(X, O, K)
  # The definition of e2m1: a sign, 2 bits of an exponent with bias 1, a bit of a fraction.
  exponent, half = codes >> 1 & 3, (codes & 1) / 2
  size = np.where(exponent > 0, (1 + half) * 2.0 ** (exponent - 1), half)
  value = np.where(codes & 8, -size, size) * np.repeat(2.0 ** (power - 127), 32, -1)
  blocks = (low | high << 4).astype(np.uint8)
  tensors = {f"{base}_blocks": blocks, f"{base}_scales": power.astype(np.uint8)}
  return tensors, value.swapaxes(1, 2)


def named(base: str, tensors: Tensors) -> Tensors:
  return {f"{base}.{end}": np.ascontiguousarray(x) for end, x in tensors.items()}


def _compressed(form: str, bits: int, kind: str = "int", **weights: Any) -> dict[str, Any]:
  own = {"num_bits": bits, "type": kind, "symmetric": True, "dynamic": False} | weights
  groups = {"group_0": {"targets": ["Linear"], "weights": own, "input_activations": None}}
  return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
          "config_groups": groups, "ignore": ["lm_head"], "kv_cache_scheme": None}  # fmt: skip


def _blocks(O, K):
  return math.ceil(O / 128), math.ceil(K / 128)


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": SIZE, "version": "gemm", "zero_point": True}
_GPTQ = {"quant_method": "gptq", "group_size": SIZE, "sym": True, "lm_head": False}
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
_GROUP = {"strategy": "group", "group_size": SIZE}
FORMATS: dict[str, Format] = {
  "fp8, blocks": Format(
    {**_FP8, "weight_block_size": [128, 128]}, float8(_blocks, "weight_scale_inv"), False
  ),
  "fp8, a scale a tensor": Format(_FP8, float8(lambda O, K: (), "weight_scale_inv"), False),
  "compressed-tensors, fp8, a scale a row": Format(
    _compressed("float-quantized", 8, "float", strategy="channel"),
    float8(lambda O, K: (O, 1), "weight_scale", BF16), False,
  ),
  "compressed-tensors, fp8, blocks": Format(
    _compressed("float-quantized", 8, "float", strategy="block", block_structure=[128, 128]),
    float8(_blocks, "weight_scale", BF16), False,
  ),
  "compressed-tensors, int8, a scale a row": Format(
    _compressed("int-quantized", 8, strategy="channel"), bytes_of_int8(True)
  ),
  "compressed-tensors, int8, a scale a tensor": Format(
    _compressed("int-quantized", 8, strategy="tensor"), bytes_of_int8(False)
  ),
  "compressed-tensors, int8, zeros": Format(
    _compressed("int-quantized", 8, strategy="channel", symmetric=False), bytes_of_int8(True, True)
  ),
  "compressed-tensors, words of int4": Format(
    _compressed("pack-quantized", 4, **_GROUP), compressed(4, lambda K: K // SIZE)
  ),
  "compressed-tensors, words of int4, zeros": Format(
    _compressed("pack-quantized", 4, symmetric=False, **_GROUP),
    compressed(4, lambda K: K // SIZE, zeros=True),
  ),
  "compressed-tensors, words of int4, any order": Format(
    _compressed("pack-quantized", 4, actorder="group", **_GROUP),
    compressed(4, lambda K: K // SIZE, order=True), False,
  ),
  "compressed-tensors, words of int8": Format(
    _compressed("pack-quantized", 8, strategy="channel", group_size=-1), compressed(8, lambda K: 1)
  ),
  "awq": Format(_AWQ, awq),
  "gptq, 4 bits": Format({**_GPTQ, "bits": 4, "desc_act": False}, gptq(4, symmetric=True)),
  "gptq, 4 bits, zeros": Format({**_GPTQ, "bits": 4, "sym": False}, gptq(4)),
  "gptq, 8 bits": Format({**_GPTQ, "bits": 8}, gptq(8)),
  "gptq, 4 bits, any order": Format(
    {**_GPTQ, "bits": 4, "desc_act": True}, gptq(4, order=True), False
  ),
  "gptq_v2, 4 bits": Format({**_GPTQ, "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, 0)),
}  # fmt: skip
"""The formats of single matrices; `mxfp4` has stacks."""

_STORAGES = {"f4": "Float", "f2": "Half", "i8": "Long", "i4": "Int", "u1": "Byte", "b1": "Bool"}


def torch_file(path: pathlib.Path, tensors: Tensors, wrap=lambda state: state) -> None:
  """An archive of torch, as torch.save writes it; `wrap` changes the pickle of the state."""

  def text(x: str) -> bytes:
    return b"X" + len(x).to_bytes(4, "little") + x.encode()

  def numbers(*given: int) -> bytes:
    return b"(" + b"".join(b"J" + int(n).to_bytes(4, "little") for n in given) + b"t"

  state = b"ccollections\nOrderedDict\n)R("
  with zipfile.ZipFile(path, "w") as archive:
    for key, (name, x) in enumerate(tensors.items()):
      kind = "BFloat16" if x.dtype == BF16 else _STORAGES[x.dtype.str[1:]]
      size, storage = x.dtype.itemsize, x.base if x.base is not None else x
      first = (x.ctypes.data - storage.ctypes.data) // size
      said = b"(" + text("storage") + f"ctorch\n{kind}Storage\n".encode() + text(str(key))
      said += text("cpu") + b"J" + storage.size.to_bytes(4, "little") + b"tQ"
      said += b"J" + first.to_bytes(4, "little") + numbers(*x.shape)
      said += numbers(*(s // size for s in x.strides)) + b"\x89ccollections\nOrderedDict\n)R"
      state += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + said + b"tR"
      archive.writestr(f"archive/data/{key}", np.ascontiguousarray(storage).tobytes())
    # The attributes of a module's state.
    state += b"u}" + text("_metadata") + b"}sb"
    archive.writestr("archive/data.pkl", b"\x80\x02" + wrap(state) + b".")
    archive.writestr("archive/byteorder", "little")
