"""GPT-OSS: sinks in attention, windows in every other layer, experts with biases and a clamp."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import LOCAL, TYPES, Found, Row, first, types_of
from specjax.models.config import Config, Experts

_SIZE = functools.partial(checks.whole, least=1)
_NUMBER = functools.partial(checks.number, above=0)
_NAMES = HF | {
  "sinks": "self_attn.sinks", "router": "mlp.router", "router_bias": "mlp.router.bias",
  "experts_in": "mlp.experts.gate_up_proj", "experts_out": "mlp.experts.down_proj",
}  # fmt: skip
_ROPE = {
  "rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip


def _read(found: Found) -> dict[str, Any]:
  known = found.known
  if not (found.raw.get("rope_parameters") or found.raw.get("rope_scaling")):
    found = found._replace(raw={**found.raw, "rope_parameters": _ROPE})
  full = found.rope()
  local = dataclasses.replace(full, window=found.value("sliding_window", 128))
  experts = Experts(
    known.get("num_local_experts", 128), known.get("num_experts_per_tok", 4),
    known["intermediate_size"], biases=True, limit=known.get("swiglu_limit", 7.0),
    slope=known.get("swiglu_alpha", 1.702),
  )  # fmt: skip
  own = {"sinks": True, "experts": experts, "out_bias": known["attention_bias"]}
  return own | found.by_type(full, local, 2)


def _write(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None or not x.biases:
    return {"num_local_experts": 0}
  return {
    "num_local_experts": x.count, "num_experts_per_tok": x.chosen, "intermediate_size": x.width,
    "swiglu_limit": x.limit, "swiglu_alpha": x.slope, "attention_bias": c.qkv_bias,
    "layer_types": types_of(c), "sliding_window": first(c, LOCAL).window,
  }  # fmt: skip


GPT_OSS = {
  "gpt_oss": Row(
    "GptOssForCausalLM", _NAMES, _read, _write,
    TYPES | {
      "attention_bias": bool, "num_local_experts": _SIZE, "num_experts_per_tok": _SIZE,
      "swiglu_limit": _NUMBER, "swiglu_alpha": _NUMBER,
    },
    {"attention_bias": True, "head_dim": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
     "rope_theta": 150000.0, "max_position_embeddings": 131072},
    idle={"initial_context_length": ..., "experts_per_token": ...},  # of its own program
  ),
}  # fmt: skip
