"""OLMo 2 and 3 and EXAONE 4, whose norms are on what attention and MLP add to the stream."""

import dataclasses
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import FULL, LOCAL, TYPES, Found, Row, alike, first, types_of
from specjax.models.config import Config

_NAMES = HF | {
  "attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm",
}  # fmt: skip
_BIAS = {"attention_bias": bool}
_ABSENT = {"rms_norm_eps": 1e-5}


def _olmo(found: Found) -> dict[str, Any]:
  bias = found.known.get("attention_bias", False)
  return {"norms": "after", "qk_norm": True, "wide_qk_norm": True, "out_bias": bias}


def _olmo2(found: Found) -> dict[str, Any]:
  return _olmo(found) | found.rope().fields


def _olmo3(found: Found) -> dict[str, Any]:
  theta = found.known.get("rope_theta", 5e5)
  full, local = found.rope(FULL, theta), found.rope(LOCAL, theta)
  local = dataclasses.replace(local, window=found.value("sliding_window", 4096))
  return _olmo(found) | found.by_type(full, local, 4)


def _exaone4(found: Found) -> dict[str, Any]:
  """Beside layers with a window, those that see everything have no rotary embedding."""
  rope, window = found.rope(), found.value("sliding_window", 4096)
  own = {"norms": "after", "qk_norm": True}
  if window is None:
    return own | alike([rope])
  full = dataclasses.replace(rope, rotary_dim=0)
  local = dataclasses.replace(rope, window=window)
  return own | found.by_type(full, local, found.known.get("sliding_window_pattern", 4))


def _pattern(name: str, value: Any) -> int:
  """How many layers a pattern has, of which the last sees everything: a number, or LLLG."""
  if isinstance(value, str) and value and value == "L" * (len(value) - 1) + "G":
    return len(value)
  return checks.whole(name, value, 1)


def _write(c: Config) -> dict[str, Any]:
  return {"attention_bias": c.qkv_bias}


def _types(c: Config) -> dict[str, Any]:
  return {"layer_types": types_of(c), "sliding_window": first(c, LOCAL).window}


NORMS_AFTER = {
  "olmo2": Row("Olmo2ForCausalLM", _NAMES, _olmo2, _write, _BIAS, _ABSENT),
  "olmo3": Row(
    "Olmo3ForCausalLM", _NAMES, _olmo3, lambda c: _write(c) | _types(c), _BIAS | TYPES, _ABSENT
  ),
  "exaone4": Row(
    "Exaone4ForCausalLM",
    _NAMES,
    _exaone4,
    _types,
    TYPES | {"sliding_window_pattern": _pattern},
    _ABSENT | {"num_key_value_heads": 32},
  ),
}
