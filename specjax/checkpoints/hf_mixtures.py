"""OLMoE and Qwen2-MoE, whose experts are Qwen3's but for a norm or an expert that all pass."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_experts
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import Found, Row
from specjax.models.config import Config, Experts

_SIZE = functools.partial(checks.whole, least=1)
_QWEN2 = HF | {
  "shared_gate": "mlp.shared_expert.gate_proj", "shared_up": "mlp.shared_expert.up_proj",
  "shared_down": "mlp.shared_expert.down_proj", "shared_share": "mlp.shared_expert_gate",
}  # fmt: skip


def _experts(found: Found, family: str) -> Experts:
  own = hf_experts.read(found.raw, family, found.known["num_hidden_layers"], found.where)
  assert own is not None
  return own


def _olmoe(found: Found) -> dict[str, Any]:
  own = {"qk_norm": True, "wide_qk_norm": True, "experts": _experts(found, "olmoe")}
  return own | {"out_bias": found.known.get("attention_bias", False), **found.rope().fields}


def _qwen2_moe(found: Found) -> dict[str, Any]:
  width = found.known.get("shared_expert_intermediate_size", 5632)
  own = dataclasses.replace(_experts(found, "qwen2_moe"), shared_width=width, shared_gate=True)
  bias = found.known.get("qkv_bias", True)
  return {"experts": own, "qkv_bias": bias, **found.sees_all().fields}


def _write(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None or x.router != "softmax":
    return {"num_experts": None}
  return {
    "num_experts": x.count, "num_experts_per_tok": x.chosen, "norm_topk_prob": x.normalised,
  }  # fmt: skip


def _write_olmoe(c: Config) -> dict[str, Any]:
  width = c.mlp_width if c.experts is None else c.experts.width
  return _write(c) | {"intermediate_size": width, "attention_bias": c.qkv_bias}


def _write_qwen2_moe(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None or not x.shared_gate:
    return {"num_experts": None}
  return _write(c) | {
    "moe_intermediate_size": x.width, "shared_expert_intermediate_size": x.shared_width,
    "mlp_only_layers": list(range(x.dense_layers)), "decoder_sparse_step": 1,
    "qkv_bias": c.qkv_bias,
  }  # fmt: skip


_COUNTS = ("num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob")
MIXTURES = {
  "olmoe": Row(
    "OlmoeForCausalLM", HF, _olmoe, _write_olmoe, {"attention_bias": bool},
    {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}, more=(*_COUNTS, "clip_qkv"),
  ),
  "qwen2_moe": Row(
    "Qwen2MoeForCausalLM", _QWEN2, _qwen2_moe, _write_qwen2_moe,
    {
      "shared_expert_intermediate_size": _SIZE, "qkv_bias": bool, "layer_types": tuple[str, ...],
    },
    {"num_key_value_heads": 16, "max_position_embeddings": 32768},
    idle={"sliding_window": ..., "max_window_layers": ...},
    more=(*_COUNTS, "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"),
  ),
}  # fmt: skip
