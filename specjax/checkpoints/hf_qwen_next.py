"""Qwen3-Next and Qwen3.5: recurrent layers between those that attend, whose output is gated."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_experts
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import FULL, Found, Row, alike, kinds_of
from specjax.models.config import Config, GatedDelta

LINEAR = "linear_attention"
_SIZE = functools.partial(checks.whole, least=1)
_DELTA = HF | {
  "delta_kernel": "linear_attn.conv1d", "delta_log_slope": "linear_attn.A_log",
  "delta_time_bias": "linear_attn.dt_bias", "delta_norm": "linear_attn.norm",
  "delta_out": "linear_attn.out_proj", "shared_gate": "mlp.shared_expert.gate_proj",
  "shared_up": "mlp.shared_expert.up_proj", "shared_down": "mlp.shared_expert.down_proj",
  "shared_share": "mlp.shared_expert_gate",
}  # fmt: skip
_GROUPED = _DELTA | {
  "delta_qkvz": "linear_attn.in_proj_qkvz", "delta_rate_time": "linear_attn.in_proj_ba",
}  # fmt: skip
_APART = _DELTA | {
  "delta_qkv": "linear_attn.in_proj_qkv", "delta_z": "linear_attn.in_proj_z",
  "delta_rate": "linear_attn.in_proj_b", "delta_time": "linear_attn.in_proj_a",
}  # fmt: skip
_SIZES = {
  "key_heads": "linear_num_key_heads", "value_heads": "linear_num_value_heads",
  "key_dim": "linear_key_head_dim", "value_dim": "linear_value_head_dim",
  "kernel": "linear_conv_kernel_dim",
}  # fmt: skip
_USUAL = GatedDelta(16, 32, 128, 128)


def _layers(found: Found) -> dict[str, Any]:
  known, where = found.known, found.where
  layers, every = known["num_hidden_layers"], known.get("full_attention_interval", 4)
  usual = tuple(LINEAR if i % every else FULL for i in range(1, layers + 1))
  types = known.get("layer_types", usual)
  if len(types) != layers or not {FULL} <= set(types) <= {FULL, LINEAR}:
    several = f"{layers} of {FULL}, once at least, and {LINEAR}"
    checks.refuse(f"{where}: layer_types", types, several)
  sizes = {ours: known[key] for ours, key in _SIZES.items() if key in known}
  full = found.rope()
  linear = dataclasses.replace(full, recurrence=dataclasses.replace(_USUAL, **sizes))
  own = {"qk_norm": True, "attention_gate": True}
  return own | alike(full if each == FULL else linear for each in types)


def _sparse(found: Found, family: str) -> dict[str, Any]:
  if found.raw.get("num_experts") == 0:
    return _layers(found)
  experts = hf_experts.read(found.raw, family, found.known["num_hidden_layers"], found.where)
  assert experts is not None
  width = found.known.get("shared_expert_intermediate_size", 512)
  own = dataclasses.replace(experts, shared_width=width, shared_gate=True)
  return {"experts": own} | _layers(found)


def _write(c: Config) -> dict[str, Any]:
  sizes = next((kind.recurrence for kind in kinds_of(c) if kind.recurrence is not None), None)
  if not isinstance(sizes, GatedDelta):
    return {"layer_types": []}
  full = c.of_layer(c.last_attention)
  share = 1.0 if full.rotary_dim is None else full.rotary_dim / c.head_dim
  types = [LINEAR if kind.recurrence is not None else FULL for kind in kinds_of(c)]
  written = {key: getattr(sizes, ours) for ours, key in _SIZES.items()}
  return written | {"layer_types": types, "partial_rotary_factor": share}


def _write_sparse(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None:
    return _write(c) | {"num_experts": 0}
  return _write(c) | {
    "num_experts": x.count, "num_experts_per_tok": x.chosen, "norm_topk_prob": x.normalised,
    "moe_intermediate_size": x.width, "shared_expert_intermediate_size": x.shared_width,
    "mlp_only_layers": list(range(x.dense_layers)), "decoder_sparse_step": 1,
  }  # fmt: skip


def _write_moe(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None or x.dense_layers:
    return {"layer_types": []}
  own = _write_sparse(c)
  return {key: own[key] for key in own.keys() - {"norm_topk_prob", "mlp_only_layers",
                                                 "decoder_sparse_step"}}  # fmt: skip


_KEYS = {
  **dict.fromkeys((*_SIZES.values(), "full_attention_interval"), _SIZE),
  "layer_types": tuple[str, ...], "partial_rotary_factor": float,
}  # fmt: skip
_ABSENT = {
  "head_dim": 256, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
  "max_position_embeddings": 32768,
}  # fmt: skip
_EXPERTS = {"shared_expert_intermediate_size": _SIZE}
_COUNTS = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")
_MORE = (*_COUNTS, "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
_IDLE = {"mtp_*": ..., "attn_output_gate": (True,), "mamba_ssm_dtype": ...}
_SPARE = ("mtp.*",)  # a draft layer
QWEN_NEXT = {
  "qwen3_5_text": Row(
    "Qwen3_5ForCausalLM", _APART, _layers, _write, _KEYS, _ABSENT | {"num_key_value_heads": 4},
    True, _IDLE, spare=_SPARE,
  ),
  "qwen3_5_moe_text": Row(
    "Qwen3_5MoeForCausalLM", _APART, functools.partial(_sparse, family="qwen3_5_moe_text"),
    _write_moe, _KEYS | _EXPERTS, _ABSENT | {"intermediate_size": 512}, True, _IDLE, _COUNTS,
    _SPARE,
  ),
  "qwen3_next": Row(
    "Qwen3NextForCausalLM", _GROUPED, functools.partial(_sparse, family="qwen3_next"),
    _write_sparse, _KEYS | _EXPERTS, _ABSENT, True, _IDLE, _MORE, _SPARE,
  ),
}  # fmt: skip
