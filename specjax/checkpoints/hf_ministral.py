"""Ministral, whose layers may have a window each, and Ministral 3, whose queries grow."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import LOCAL, TYPES, Found, Row, first, types_of
from specjax.models.config import Config

_ROPE = {
  "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
  "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def _ministral(found: Found) -> dict[str, Any]:
  full = found.rope()
  local = dataclasses.replace(full, window=found.value("sliding_window", 4096))
  return found.by_type(full, local, found.known["num_hidden_layers"] + 1)


def _write_ministral(c: Config) -> dict[str, Any]:
  return {"layer_types": types_of(c), "sliding_window": first(c, LOCAL).window}


def _read(found: Found) -> dict[str, Any]:
  if not (found.raw.get("rope_parameters") or found.raw.get("rope_scaling")):
    found = found._replace(raw={**found.raw, "rope_parameters": _ROPE})
  rope = found.rope()
  return dataclasses.replace(rope, window=found.known.get("sliding_window")).fields


def _write(c: Config) -> dict[str, Any]:
  return {"sliding_window": c.window}


MINISTRAL = {
  "ministral": Row(
    "MinistralForCausalLM", HF, _ministral, _write_ministral, TYPES,
    {"num_key_value_heads": 8, "max_position_embeddings": 131072},
  ),
  "ministral3": Row(
    "Ministral3ForCausalLM", HF, _read, _write,
    {"sliding_window": functools.partial(checks.whole, least=1)},
    {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
     "max_position_embeddings": 262144},
  ),
}  # fmt: skip
