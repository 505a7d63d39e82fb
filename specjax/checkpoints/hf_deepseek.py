"""DeepSeek-V2, V3 and Kimi K2: latent attention, and experts chosen in groups, in the first by a
softmax, then by sigmoids."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_experts, hf_rope
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import Found, Row
from specjax.models.config import Config, Latent

_SIZE = functools.partial(checks.whole, least=1)
_NAMES = HF | {
  "router_bias": "mlp.gate.e_score_correction_bias", "kv_down": "self_attn.kv_a_proj_with_mqa",
  "kv_norm": "self_attn.kv_a_layernorm", "kv_up": "self_attn.kv_b_proj",
  "q_down": "self_attn.q_a_proj", "q_down_norm": "self_attn.q_a_layernorm",
  "q_up": "self_attn.q_b_proj",
}  # fmt: skip
_LATENT = {
  "rank": "kv_lora_rank", "q_rank": "q_lora_rank", "plain": "qk_nope_head_dim",
  "rotary": "qk_rope_head_dim", "value": "v_head_dim",
}  # fmt: skip
_ABSENT = {
  "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "num_key_value_heads": 128, "max_position_embeddings": 4096,
}  # fmt: skip
_EXPERTS = {"first_k_dense_replace": 3, "n_group": 8, "topk_group": 4}
_GREEDY, _IN_GROUPS = "greedy", "group_limited_greedy"  # `topk_method` of the second


def _spread(factor: float) -> float:
  """What YaRN's scores are multiplied with, but for the root and for `mscale_all_dim`."""
  return 0.1 * math.log(factor) if factor > 1 else 0.0


def _layers(found: Found, family: str, absent: Mapping[str, Any], shared: int) -> dict[str, Any]:
  """What both have, with the keys of experts that the program has for absent ones, and the number
  of shared experts."""
  known = found.known
  latent = Latent(**{ours: known.get(key) for ours, key in _LATENT.items()} | {
    "q_rank": found.value("q_lora_rank", 1536) or 0
  })  # fmt: skip
  if (turned := known.get("head_dim", latent.rotary)) != latent.rotary:
    checks.refuse(
      f"{found.where}: head_dim", turned, f"qk_rope_head_dim={latent.rotary}, or absent"
    )
  # The rotary embedding is that of the rotary numbers alone.
  rope = found._replace(known={**known, "head_dim": latent.rotary}).rope()
  inside = found.raw.get("rope_scaling") or found.raw.get("rope_parameters") or {}
  scale, scaling = None, rope.rope_scaling
  if scaling is not None and (weight := inside.get("mscale_all_dim")):
    scale = (1 + weight * _spread(scaling.factor)) ** 2 * (latent.plain + latent.rotary) ** -0.5
  # The file says of each layer, too, that it has experts, or of all by one number.
  raw = {**absent, **{key: x for key, x in found.raw.items() if key != "moe_layer_freq"}}
  experts = hf_experts.read(raw, family, known["num_hidden_layers"], found.where)
  assert experts is not None
  width = known.get("n_shared_experts", shared) * experts.width
  return {
    **rope.fields, "latent": latent, "kv_heads": 1, "head_dim": latent.plain + latent.rotary,
    "rotary_dim": latent.rotary, "neighbours": known.get("rope_interleave", True),
    "attention_scale": scale, "experts": dataclasses.replace(experts, shared_width=width),
  }  # fmt: skip


def _read_v2(found: Found) -> dict[str, Any]:
  """Groups count where `topk_method` says so."""
  own = _layers(found, "deepseek_v2", {}, 2)
  if found.known.get("topk_method", _GREEDY) == _GREEDY:
    return own
  known = found.known
  groups = {"groups": known.get("n_group"), "chosen_groups": known.get("topk_group")}
  return own | {"experts": dataclasses.replace(own["experts"], **groups)}


def _write(c: Config) -> dict[str, Any]:
  own, x = c.latent, c.experts
  if own is None or x is None or x.shared_width % x.width:
    return {"kv_lora_rank": None, "n_routed_experts": None}
  raw = {key: getattr(own, ours) or None for ours, key in _LATENT.items()}
  rope = hf_rope.write(c.rope_scaling)
  if rope is not None and c.rope_scaling is not None and c.attention_scale is not None:
    grown = (c.attention_scale * c.head_dim**0.5) ** 0.5 - 1
    rope["mscale_all_dim"] = round(grown / _spread(c.rope_scaling.factor), 9)
  return raw | {
    "num_key_value_heads": c.heads, "head_dim": own.rotary, "rope_scaling": rope,
    "rope_interleave": c.neighbours, "n_routed_experts": x.count, "num_experts_per_tok": x.chosen,
    "moe_intermediate_size": x.width, "n_shared_experts": x.shared_width // x.width,
    "routed_scaling_factor": x.scale, "n_group": x.groups, "topk_group": x.chosen_groups,
    "norm_topk_prob": x.normalised, "first_k_dense_replace": x.dense_layers,
    "num_nextn_predict_layers": 0,
  }  # fmt: skip


def _write_v2(c: Config) -> dict[str, Any]:
  raw, greedy = _write(c), c.experts is None or c.experts.groups == 1
  own = {key: x for key, x in raw.items() if key not in ("rope_interleave", _DRAFTS)}
  return own | {"topk_method": _GREEDY if greedy else _IN_GROUPS}


_DRAFTS = "num_nextn_predict_layers"
_KEYS = {**dict.fromkeys(_LATENT.values(), _SIZE), "n_shared_experts": _SIZE}
_MORE = ("n_routed_experts", "num_local_experts", "moe_intermediate_size", "norm_topk_prob",
         "routed_scaling_factor", "first_k_dense_replace")  # fmt: skip
# What the published files have beside what their program reads.
_IDLE = {
  "qk_head_dim": ..., "ep_size": ..., "seq_aux": ..., "aux_loss_alpha": ...,
  "moe_layer_freq": (1,),
}  # fmt: skip
DEEPSEEK = {
  "deepseek_v3": Row(
    "DeepseekV3ForCausalLM", _NAMES,
    functools.partial(_layers, family="deepseek_v3", absent=_EXPERTS, shared=1), _write,
    {
      **_KEYS, "rope_interleave": bool,
      # Of one expert the program makes the weight 1 where it is normalised, this one does not.
      "num_experts_per_tok": functools.partial(checks.whole, least=2),
    },
    _ABSENT,
    idle={
      **_IDLE, "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",),
      _DRAFTS: ..., "num_mtp_layers": ...,
    },
    more=(*_MORE, "n_group", "topk_group"),
    spare=("model.layers.{}.*",),
  ),
  "deepseek_v2": Row(
    "DeepseekV2ForCausalLM", _NAMES, _read_v2, _write_v2,
    {
      **_KEYS, "num_experts_per_tok": _SIZE, "n_group": _SIZE, "topk_group": _SIZE,
      "topk_method": functools.partial(checks.choice, accepted=(_GREEDY, _IN_GROUPS)),
    },
    _ABSENT | {"num_key_value_heads": 32, "max_position_embeddings": 2048},
    idle={**_IDLE, "scoring_func": ("softmax",)}, more=_MORE,
  ),
}  # fmt: skip
