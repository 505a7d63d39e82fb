"""Directories whose weights are in few bits: which methods are read, and the refusal of others."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from specjax import checks
from specjax.checkpoints import awq_gptq, compressed_tensors, float8, mxfp4
from specjax.checkpoints.few_bits import Few
from specjax.checkpoints.stored import Stored

METHODS: dict[str, Callable[[Mapping[str, Stored], Mapping[str, Any], str], dict[str, Few]]] = {
  "awq": awq_gptq.awq, "compressed-tensors": compressed_tensors.find, "fp8": float8.find,
  "gptq": awq_gptq.gptq, "mxfp4": mxfp4.find,
}  # fmt: skip
"""What is read, by the `quant_method` of `quantization_config` in config.json."""

KEY = "quantization_config"
FLOATS = "safetensors in F32, F16, BF16 or the 8 bits that specjax writes"
"""What is read of a head."""
_READ = f"{FLOATS}, a GGUF file, or weights of {', '.join(METHODS)} with their {KEY}"
_KEYS = (KEY, "compression_config", "quantization")  # the last is MLX's
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


def _refuse(what: str, read: str = _READ) -> NoReturn:
  raise ValueError(f"{what}: quantised weights are not read in this form; use {read}.")


def is_read(raw: Mapping[str, Any]) -> bool:
  """Whether config.json says a method that is read."""
  said = raw.get(KEY)
  return isinstance(said, dict) and said.get("quant_method") in [*METHODS]


def check_config(directory: pathlib.Path, raw: Mapping[str, Any], read: str = _READ) -> None:
  """Raises ValueError where config.json, or a file beside it, says that weights are quantised.

  `read` is what the sentence says may be used.
  """
  for key in _KEYS:
    if raw.get(key) is not None:
      said = _method(raw[key]) if isinstance(raw[key], dict) else checks.shown(raw[key])
      _refuse(f"{directory / 'config.json'}: {key} says {said}", read)
  for name in _FILES:
    if (directory / name).is_file():
      _refuse(f"{directory / name} says {_method(checks.read_json(directory / name))}", read)


def find(
  stored: Mapping[str, Stored], raw: Mapping[str, Any], directory: pathlib.Path
) -> dict[str, Few]:
  """The tensors in few bits of a directory, by the names that files of floats have for them.

  Raises:
    ValueError: what config.json says is not accepted; or it is silent, and a tensor says that
      weights are quantised.
  """
  if is_read(raw):
    said = raw[KEY]
    return METHODS[said["quant_method"]](stored, said, f"{directory / 'config.json'}: {KEY}")
  for name, tensor in stored.items():
    for method, ends in _TENSORS.items():
      if name.endswith(ends):
        _refuse(f"tensor {name} is one of {method}")
    if tensor.dtype.startswith(_DTYPES):
      _refuse(f"tensor {name} has dtype {tensor.dtype}")
  return {}
