"""The rotary embedding of a GGUF file, as llama.cpp reads it, into the keys of a config.json."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax import checks
from specjax.models.config import Config
from specjax.models.rotary import rope_frequencies

STRETCH = "rope_freqs.weight"  # a tensor of Llama 3.1's divisors of the rotary frequencies
FACTORS = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}
"""Tensors of LongRoPE's divisors of the rotary frequencies, and their keys in a config.json."""

_SIZE = functools.partial(checks.whole, least=1)
_FACTOR = functools.partial(checks.number, least=0)
SCHEMA = {
  "rope.dimension_count": _SIZE, "rope.scaling.type": str, "rope.scaling.factor": _FACTOR,
  "rope.scale_linear": _FACTOR, "rope.scaling.original_context_length": _SIZE,
  "rope.scaling.attn_factor": functools.partial(checks.number, above=0),
}  # fmt: skip
"""Keys after the architecture's name, and what they accept."""


def _limits(architecture: str) -> dict[str, Any]:
  """Llama 3.1's, or Llama 4's, which files do not say."""
  high = 1.0 if architecture == "llama4" else 4.0
  return {
    "low_freq_factor": 1.0, "high_freq_factor": high, "original_max_position_embeddings": 8192,
  }  # fmt: skip


def scaling(
  found: Mapping[str, Any], stretch: np.ndarray | None, where: str, architecture: str
) -> dict[str, Any] | None:
  """`rope_scaling` of an equal config.json.

  A factor without a type is linear, `rope.scale_linear` is the factor's name in the oldest files,
  and a factor of 0 is none.

  Args:
    found: values by their keys after the architecture's name.
    stretch: of the tensor `STRETCH`, or None.
    where, architecture: the file, and what its keys begin with, for messages.

  It raises ValueError for what no config.json has.
  """
  kind = found.get("rope.scaling.type", "linear")
  factor = found.get("rope.scaling.factor", found.get("rope.scale_linear"))
  attention = found.get("rope.scaling.attn_factor", 1.0)
  if attention != 1 and kind != "yarn":
    checks.refuse(f"{where}: {architecture}.rope.scaling.attn_factor", attention, "1 but for yarn")
  idle = factor in (0, 1) or (factor is None and "rope.scaling.type" not in found)
  rope = {"rope_type": kind, "factor": 1.0 if factor == 0 else factor}
  if kind == "yarn":
    key = "rope.scaling.original_context_length"
    if key not in found:
      raise ValueError(f"{where}: the yarn rope scaling lacks '{architecture}.{key}'.")
    rope["original_max_position_embeddings"] = found[key]
    if attention != 1 and factor is not None:
      rope["attention_factor"] = attention * (0.1 * math.log(max(factor, 1)) + 1)
  wanted = None if kind == "none" or (kind == "linear" and idle) else rope
  if stretch is None:
    return wanted
  if wanted is not None:
    checks.refuse(
      f"{where}: {architecture}.rope.scaling.type", kind, f"none beside the tensor {STRETCH}"
    )
  return {"rope_type": "llama3", "factor": float(stretch.max()), **_limits(architecture)}


def longrope(
  found: Mapping[str, Any], factors: Mapping[str, np.ndarray], where: str, architecture: str
) -> dict[str, Any]:
  """`scaling` beside the tensors of `FACTORS`, which are by their keys."""
  kind = found.get("rope.scaling.type", "longrope")
  if kind not in ("none", "longrope"):
    checks.refuse(
      f"{where}: {architecture}.rope.scaling.type",
      kind,
      f"none or longrope beside {', '.join(FACTORS)}",
    )
  key = "rope.scaling.original_context_length"
  if key not in found:
    raise ValueError(f"{where}: the longrope scaling lacks '{architecture}.{key}'.")
  return {
    "rope_type": "longrope", "original_max_position_embeddings": found[key],
    "attention_factor": found.get("rope.scaling.attn_factor", 1.0),
    **{name: [float(str(x)) for x in values] for name, values in factors.items()},
  }  # fmt: skip


def check_stretch(config: Config, stretch: np.ndarray, where: str, architecture: str) -> None:
  """Raises ValueError unless the frequencies of the first layer are divided by `_limits`."""
  config = config.of_layer(0)
  exponent = np.arange(0, config.head_dim, 2) / config.head_dim
  wanted = rope_frequencies(config)
  if stretch.shape != wanted.shape or not np.allclose(
    config.rope_theta**-exponent / stretch, wanted, 1e-4
  ):
    raise ValueError(
      f"{where}: {STRETCH} stretches rotary frequencies by other limits than "
      f"those of its family, {_limits(architecture)}."
    )
