"""DeepSeek-V3 and Kimi K2: latent attention, and experts chosen by sigmoids in groups."""

import dataclasses
import functools
import math
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


def _spread(factor: float) -> float:
  """What YaRN's scores are multiplied with, but for the root and for `mscale_all_dim`."""
  return 0.1 * math.log(factor) if factor > 1 else 0.0


def _read(found: Found) -> dict[str, Any]:
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
  raw = _EXPERTS | {key: x for key, x in found.raw.items() if key != "moe_layer_freq"}
  experts = hf_experts.read(raw, "deepseek_v3", known["num_hidden_layers"], found.where)
  assert experts is not None
  shared = known.get("n_shared_experts", 1) * experts.width
  return {
    **rope.fields, "latent": latent, "kv_heads": 1, "head_dim": latent.plain + latent.rotary,
    "rotary_dim": latent.rotary, "neighbours": known.get("rope_interleave", True),
    "attention_scale": scale, "experts": dataclasses.replace(experts, shared_width=shared),
  }  # fmt: skip


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


DEEPSEEK = {
  "deepseek_v3": Row(
    "DeepseekV3ForCausalLM", _NAMES, _read, _write,
    {
      **dict.fromkeys(_LATENT.values(), _SIZE), "rope_interleave": bool, "n_shared_experts": _SIZE,
      # Of one expert the program makes the weight 1 where it is normalised, this one does not.
      "num_experts_per_tok": functools.partial(checks.whole, least=2),
    },
    _ABSENT,
    # What the published files have beside what their program reads, and the draft layers.
    idle={
      "qk_head_dim": ..., "ep_size": ..., "seq_aux": ..., "aux_loss_alpha": ...,
      "moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",),
      "num_nextn_predict_layers": ..., "num_mtp_layers": ...,
    },
    more=("n_routed_experts", "num_local_experts", "moe_intermediate_size", "norm_topk_prob",
          "routed_scaling_factor", "n_group", "topk_group", "first_k_dense_replace"),
    spare=("model.layers.{}.*",),
  ),
}  # fmt: skip
