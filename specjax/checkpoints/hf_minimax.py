"""MiniMax-M2: norms over all heads of q and of k, and experts chosen by sigmoids in every layer."""

import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_experts
from specjax.checkpoints.hf_layout import MIXTRAL
from specjax.checkpoints.hf_rows import Found, Row
from specjax.models.config import Config

_NAMES = MIXTRAL | {"router_bias": "block_sparse_moe.e_score_correction_bias"}


def _read(found: Found) -> dict[str, Any]:
  known = dict(found.known)
  if "rotary_dim" in known:
    known.setdefault("partial_rotary_factor", known["rotary_dim"] / known["head_dim"])
  experts = hf_experts.read(found.raw, "minimax_m2", known["num_hidden_layers"], found.where)
  rope = found._replace(known=known).rope()
  return {"qk_norm": True, "wide_qk_norm": True, "experts": experts, **rope.fields}


def _write(c: Config) -> dict[str, Any]:
  x = c.experts
  if x is None or x.router != "sigmoid" or x.shared_width:
    return {"num_local_experts": None, "intermediate_size": None}
  return {
    "num_local_experts": x.count, "num_experts_per_tok": x.chosen, "intermediate_size": x.width,
    "rotary_dim": c.head_dim if c.rotary_dim is None else c.rotary_dim,
  }  # fmt: skip


MINIMAX = {
  "minimax_m2": Row(
    "MiniMaxM2ForCausalLM", _NAMES, _read, _write,
    {
      "rotary_dim": functools.partial(checks.whole, least=2), "partial_rotary_factor": float,
      # Of one expert the program makes the weight 1, this one does not.
      "num_experts_per_tok": functools.partial(checks.whole, least=2),
    },
    {"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6,
     "max_position_embeddings": 196608},
    # What the published files have beside what their program reads, and the draft layers.
    idle={
      "scoring_func": ("sigmoid",), "use_routing_bias": (True,), "use_qk_norm": (True,),
      "qk_norm_type": ("per_layer",), "shared_intermediate_size": (0,), "layernorm_*": (1,),
      "attn_type_list": ..., "mlp_intermediate_size": ..., "shared_moe_mode": ..., "use_mtp": ...,
      "num_mtp_modules": ..., "mtp_transformer_layers": ...,
    },
    more=("num_local_experts",),
  ),
}  # fmt: skip
