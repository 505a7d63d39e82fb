"""GLM, whose neighbouring numbers turn, GLM-4 with norms behind, too, and GLM-4.5 with experts, and
dots.llm1, which has these, too."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_experts
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import Found, Row
from specjax.models.config import Config

_SIZE = functools.partial(checks.whole, least=1)
_NAMES = HF | dict.fromkeys(("gate", "up"), "mlp.gate_up_proj")
_FOUR_NORMS = _NAMES | {
  "attention_out_norm": "post_self_attn_layernorm", "mlp_out_norm": "post_mlp_layernorm",
}  # fmt: skip
_KEYS = {"attention_bias": bool, "partial_rotary_factor": float}
_ABSENT = {"partial_rotary_factor": 0.5, "max_position_embeddings": 131072}
_DENSE = _ABSENT | {
  "attention_bias": True, "head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7,
}  # fmt: skip


def _glm(found: Found) -> dict[str, Any]:
  return {"neighbours": True, **found.rope().fields}


def _glm4(found: Found) -> dict[str, Any]:
  return {"norms": "both", **_glm(found)}


def _experts(found: Found, family: str, dense: int) -> dict[str, Any]:
  raw = {"first_k_dense_replace": dense, **found.raw}
  experts = hf_experts.read(raw, family, found.known["num_hidden_layers"], found.where)
  assert experts is not None
  shared = found.known.get("n_shared_experts", 1) * experts.width
  return {"experts": dataclasses.replace(experts, shared_width=shared)}


def _glm4_moe(found: Found) -> dict[str, Any]:
  own = _experts(found, "glm4_moe", 1)
  return own | {"qk_norm": found.known.get("use_qk_norm", False), **found.rope().fields}


def _dots1(found: Found) -> dict[str, Any]:
  own = {"qk_norm": True, "out_bias": found.known.get("attention_bias", False)}
  return own | _experts(found, "dots1", 0) | found.sees_all().fields


def _write(c: Config) -> dict[str, Any]:
  share = 1.0 if c.rotary_dim is None else c.rotary_dim / c.head_dim
  return {"attention_bias": c.qkv_bias, "partial_rotary_factor": share}


def _write_moe(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None or x.router != "sigmoid" or x.shared_gate or x.shared_width % x.width:
    return {"n_shared_experts": 0}
  return _write(c) | {
    "n_routed_experts": x.count, "num_experts_per_tok": x.chosen, "moe_intermediate_size": x.width,
    "n_shared_experts": x.shared_width // x.width, "routed_scaling_factor": x.scale,
    "n_group": x.groups, "topk_group": x.chosen_groups, "norm_topk_prob": x.normalised,
    "first_k_dense_replace": x.dense_layers, "use_qk_norm": c.qk_norm,
    "num_nextn_predict_layers": 0,
  }  # fmt: skip


def _write_dots1(c: Config) -> dict[str, Any]:
  return {key: x for key, x in _write_moe(c).items() if key not in _NOT_DOTS}


_MOE_KEYS = {
  "n_shared_experts": _SIZE,
  # Of one expert the program makes the weight 1 where it is normalised, this one does not.
  "num_experts_per_tok": functools.partial(checks.whole, least=2),
}  # fmt: skip
_NOT_DOTS = ("partial_rotary_factor", "use_qk_norm", "num_nextn_predict_layers")
_MORE = ("n_routed_experts", "num_local_experts", "moe_intermediate_size", "norm_topk_prob",
         "routed_scaling_factor", "n_group", "topk_group", "first_k_dense_replace")  # fmt: skip
_MOE_NAMES = HF | {"router_bias": "mlp.gate.e_score_correction_bias"}
GLM = {
  "glm": Row("GlmForCausalLM", _NAMES, _glm, _write, _KEYS, _DENSE),
  "glm4": Row("Glm4ForCausalLM", _FOUR_NORMS, _glm4, _write, _KEYS, _DENSE),
  "glm4_moe": Row(
    "Glm4MoeForCausalLM", _MOE_NAMES, _glm4_moe, _write_moe,
    _KEYS | _MOE_KEYS | {"use_qk_norm": bool},
    _ABSENT | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    # Of the layer behind the last, a draft head, see `mtp`.
    idle={"num_nextn_predict_layers": ..., "num_mtp_layers": ...}, spare=("model.layers.{}.*",),
    more=_MORE,
  ),
  "dots1": Row(
    "Dots1ForCausalLM", _MOE_NAMES, _dots1, _write_dots1,
    _MOE_KEYS | {"attention_bias": bool, "layer_types": tuple[str, ...]},
    {"num_key_value_heads": 32}, idle={"sliding_window": ..., "max_window_layers": ...},
    more=_MORE,
  ),
}  # fmt: skip
