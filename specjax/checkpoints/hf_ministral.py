"""Ministral 3, a Mistral whose queries grow with the position."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import Found, Row
from specjax.models.config import Config

_ROPE = {
  "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
  "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def _read(found: Found) -> dict[str, Any]:
  if not (found.raw.get("rope_parameters") or found.raw.get("rope_scaling")):
    found = found._replace(raw={**found.raw, "rope_parameters": _ROPE})
  rope = found.rope()
  return vars(dataclasses.replace(rope, window=found.known.get("sliding_window")))


def _write(c: Config) -> dict[str, Any]:
  return {"sliding_window": c.window}


MINISTRAL = {
  "ministral3": Row(
    "Ministral3ForCausalLM", HF, _read, _write,
    {"sliding_window": functools.partial(checks.whole, least=1)},
    {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
     "max_position_embeddings": 262144},
  ),
}  # fmt: skip
