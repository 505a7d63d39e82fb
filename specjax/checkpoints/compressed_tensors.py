"""Matrices as compressed-tensors writes them: whole numbers in bytes or words, or FP8.

NAME.weight_packed has words of 4 or 8 bits, from -8 or -128 on, in the shape of NAME.weight_shape;
NAME.weight whole numbers or FP8 in bytes. NAME.weight_scale has a scale for all, for each output,
or for each group of inputs, and NAME.weight_zero_point zeros, where these are not 0.

Letters: O outputs, K inputs, N groups of inputs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax import checks
from specjax.checkpoints import float8
from specjax.checkpoints.few_bits import Few, Numbers, of_numbers, unpacked
from specjax.checkpoints.harmless import Harmless, known_keys
from specjax.checkpoints.stored import Stored

FORMATS = (
  "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision",
)  # fmt: skip
_PACKED, _BYTES, _SCALE, _ZERO = ".weight_packed", ".weight", ".weight_scale", ".weight_zero_point"
_ORDER, _SHAPE = ".weight_g_idx", ".weight_shape"
_KEYS: Harmless = {
  "quant_method": ..., "ignore": ..., "quantization_status": ("compressed", "frozen"),
  "version": ..., "global_compression_ratio": ..., "run_compressed": ..., "transform_config": ({},),
}  # fmt: skip
_GROUP: Harmless = {"targets": ..., "input_activations": ..., "output_activations": ...}
_WEIGHTS: Harmless = {
  "symmetric": ..., "strategy": ..., "dynamic": (False,), "observer": ..., "observer_kwargs": ...,
  "actorder": ..., "scale_dtype": ..., "zp_dtype": ...,
}  # fmt: skip


def _format(name: str, value: Any) -> str:
  return checks.choice(name, value, FORMATS)


def _sizes(said: Mapping[str, Any], where: str) -> tuple[int, int]:
  """Outputs and inputs of a block, of which a file has one kind."""
  known_keys(said, where, ("format", "config_groups", "sparsity_config"), _KEYS)
  sparse = said.get("sparsity_config") or {}
  if not isinstance(sparse, dict) or sparse.get("format", "dense") != "dense":
    checks.refuse(f"{where}: sparsity_config", sparse, "an object whose format is dense")
  _format(f"{where}: format", said.get("format"))
  groups = said.get("config_groups")
  if not isinstance(groups, dict) or not groups:
    checks.refuse(f"{where}: config_groups", groups, "an object of groups")
  sizes = set()
  for key, group in groups.items():
    inner = f"{where}: config_groups: {key}"
    own = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(own, dict):
      checks.refuse(inner, group, "an object with weights")
    known_keys(group, inner, ("weights", "format"), _GROUP)
    checks.fields_of(group, {"format": _format}, inner)
    read = {"num_bits": int, "type": str, "group_size": int, "block_structure": tuple[int, ...]}
    known_keys(own, inner, read, _WEIGHTS)
    known = checks.fields_of({k: v for k, v in own.items() if v != -1}, read, inner, ["num_bits"])
    kind = known.get("type", "int"), known["num_bits"]
    if kind not in (("int", 4), ("int", 8), ("float", 8)):
      checks.refuse(f"{inner}: num_bits", kind[1], f"4 or 8, or 8 of floats, with type={kind[0]}")
    sizes.add(known.get("block_structure", (1, known.get("group_size", 1))))
  sizes = {x for x in sizes if x != (1, 1)} or {(1, 1)}
  if len(sizes) > 1 or len(next(iter(sizes))) != 2 or min(next(iter(sizes))) < 1:
    checks.refuse(f"{where}: config_groups", groups, "groups or blocks of one size")
  return sizes.pop()


def _whole(base: str, stored: Mapping[str, Stored], size: int) -> Few:
  """A matrix of whole numbers in words or bytes."""
  name = next(base + end for end in (_PACKED, _BYTES) if base + end in stored)
  words, packed = stored[name], name.endswith(_PACKED)
  if base + _SCALE not in stored or (packed and base + _SHAPE not in stored):
    raise ValueError(f"the checkpoint lacks tensor {base}{_SCALE} or {_SHAPE}, which {name} needs.")
  scale, zero, order = (stored.get(base + end) for end in (_SCALE, _ZERO, _ORDER))
  assert scale is not None
  shape = tuple(int(n) for n in stored[base + _SHAPE].read()) if packed else words.shape
  bits = 8 if not packed or words.shape[-1] * 4 == shape[-1] else 4
  if len(shape) != 2 or (packed and words.shape != (shape[0], shape[1] * bits // 32)):
    checks.refuse(f"shape of tensor {name}", words.shape, "that of words of 4 or 8 bits")
  O, K = shape
  N = scale.shape[1] if len(scale.shape) == 2 else 1
  middle = 1 << (bits - 1)

  def numbers() -> Numbers:
    if order is None:
      group = float8.of_each(base + _SCALE, K, N, size)
    else:
      group = order.read().astype(np.int64)
    own = unpacked(words.read(), bits) if packed else words.read().view(np.uint8) ^ 128
    zeros = np.full((1, 1), middle, np.int16)
    if zero is not None and zero.dtype == "I32":  # words of outputs
      zeros = unpacked(np.ascontiguousarray(zero.read().T), bits).T[:O].astype(np.int16)
    elif zero is not None:
      zeros = zero.read().astype(np.int16).reshape(-1, N) + np.int16(middle)
    scales = np.broadcast_to(scale.read().reshape(-1, N), (O, N))
    return Numbers(own, bits, zeros, scales, group)

  ends = (_PACKED, _BYTES, _SCALE, _ZERO, _ORDER, _SHAPE, *float8.OF_ACTIVATIONS)
  return of_numbers((O, K), tuple(base + end for end in ends), numbers)


def find(stored: Mapping[str, Stored], said: Mapping[str, Any], where: str) -> dict[str, Few]:
  """The matrices of a checkpoint; ValueError for a format that is not read."""
  sizes, found = _sizes(said, where), {}
  for name, tensor in stored.items():
    base, dot, last = name.rpartition(".")
    if dot + last == _PACKED or (dot + last == _BYTES and tensor.dtype == "I8"):
      found[base + _BYTES] = _whole(base, stored, sizes[1])
    elif tensor.dtype == "F8_E4M3":
      found[name] = float8.matrix(name, stored, sizes)
  return found
