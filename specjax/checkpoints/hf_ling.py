"""Ling 2, whose layers are those of LLaDA2, read from left to right; it is saved as GLM-4.5, which
is the same network."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import harmless, hf_experts
from specjax.checkpoints.hf_layout import LLADA2
from specjax.checkpoints.hf_rows import Found, Row

_SHARED = "num_shared_experts"


def _read(found: Found) -> dict[str, Any]:
  known = found.known
  own = hf_experts.read(found.raw, "bailing_moe_v2", known["num_hidden_layers"], found.where)
  assert own is not None
  own = dataclasses.replace(own, shared_width=known.get(_SHARED, 1) * own.width)
  return {"experts": own, "qk_norm": True, **found.rope().fields}


LING = {
  "bailing_moe_v2": Row(
    "BailingMoeV2ForCausalLM", LLADA2, _read, lambda c: {},
    {_SHARED: checks.whole, "partial_rotary_factor": float,
     "num_experts_per_tok": functools.partial(checks.whole, least=2)},
    {"partial_rotary_factor": 0.5, "num_key_value_heads": 4, "rope_theta": 6e5,
     "max_position_embeddings": 32768},
    idle={**harmless.FAMILIES["llada2_moe"], "use_bias": (False,), "use_qkv_bias": (False,),
          "use_qk_norm": (True,), "norm_head": (False,), "output_dropout": ...,
          "num_nextn_predict_layers": ..., "max_window_layers": ...},
    more=("num_experts", "num_local_experts", "moe_intermediate_size", "norm_topk_prob",
          "routed_scaling_factor", "n_group", "topk_group", "first_k_dense_replace",
          "score_function"),
    spare=("model.layers.{}.*",),
  ),
}  # fmt: skip
