"""Directories of quantised weights, which are refused by name: they are not read."""

import pathlib
from collections.abc import Mapping
from typing import Any, NoReturn

from specjax import checks

_READ = (
  "safetensors in F32, F16, BF16 or the 8 bits that specjax writes, or a GGUF file, whose "
  "tensors are dequantised"
)
_KEYS = ("quantization_config", "compression_config", "quantization")  # the last is MLX's
# Files beside config.json: AutoGPTQ's, AutoAWQ's first one, and that of NVIDIA's Model Optimizer.
_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
_METHODS = ("quant_method", "quant_algo", "quant_type", "format")
# Ends of the names of what lies beside packed weights, by the program that wrote them.
_TENSORS = {
  "GPTQ, AWQ or MLX": (".qweight", ".qzeros", ".g_idx", ".scales"),
  "compressed-tensors": (".weight_packed", ".weight_shape", ".weight_zero_point"),
  "FP8, NVFP4 or compressed-tensors": (
    ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale", ".k_scale", ".v_scale",
  ),
  "bitsandbytes": (".SCB", ".absmax", ".quant_map", ".nested_absmax", ".weight_format"),
  "MXFP4": ("_blocks", "_scales"),
  "HQQ or AQLM": (".W_q", ".codebooks", ".codes"),
}  # fmt: skip
_DTYPES = ("F8", "F6", "F4", "U8", "I32", "U32")  # how those begin that no other tensors have


def _method(found: Mapping[str, Any]) -> str:
  """What a file calls the method, such as quant_method='awq'."""
  for key in _METHODS:
    if key in found:
      return f"{key}={checks.shown(found[key])}"
  inner = next((x for x in found.values() if isinstance(x, dict) and x), None)
  return checks.shown(found) if inner is None else _method(inner)


def _refuse(what: str) -> NoReturn:
  raise ValueError(f"{what}: quantised weights are not read; use {_READ}.")


def check_config(directory: pathlib.Path, raw: Mapping[str, Any]) -> None:
  """Raises ValueError where config.json, or a file beside it, says that weights are quantised."""
  for key in _KEYS:
    if raw.get(key) is not None:
      said = _method(raw[key]) if isinstance(raw[key], dict) else checks.shown(raw[key])
      _refuse(f"{directory / 'config.json'}: {key} says {said}")
  for name in _FILES:
    if (directory / name).is_file():
      _refuse(f"{directory / name} says {_method(checks.read_json(directory / name))}")


def check_tensors(dtypes: Mapping[str, str]) -> None:
  """Raises ValueError for a tensor that only quantised weights have, where no file says so.

  `dtypes` are those of a safetensors file, by name.
  """
  for name, dtype in dtypes.items():
    for method, ends in _TENSORS.items():
      if name.endswith(ends):
        _refuse(f"tensor {name} is one of {method}")
    if dtype.startswith(_DTYPES):
      _refuse(f"tensor {name} has dtype {dtype}")
