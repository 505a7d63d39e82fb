"""Cohere 2: attention and MLP beside each other behind one LayerNorm; only windows have rotary
embedding."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import LOCAL, TYPES, Found, Row, first, types_of
from specjax.models.config import Config

_NUMBER = functools.partial(checks.number, above=0)


def _read(found: Found) -> dict[str, Any]:
  known, rope = found.known, found.rope()
  window = found.value("sliding_window", 4096)
  if window is None:
    checks.refuse(f"{found.where}: sliding_window", window, "a number of positions")
  full = dataclasses.replace(rope, rotary_dim=0)
  local = dataclasses.replace(rope, window=window)
  return {
    "norms": "shared", "centred": True, "neighbours": True,
    "out_bias": known.get("attention_bias", False),
    "norm_epsilon": known.get("layer_norm_eps", 1e-5),
    "logit_scale": known.get("logit_scale", 0.0625),
    **found.by_type(full, local, known.get("sliding_window_pattern", 4)),
  }  # fmt: skip


def _write(c: Config) -> dict[str, Any]:
  local = first(c, LOCAL)
  return {
    "layer_types": types_of(c), "sliding_window": local.window, "attention_bias": c.qkv_bias,
    "layer_norm_eps": c.norm_epsilon, "rms_norm_eps": None, "logit_scale": c.logit_scale,
  }  # fmt: skip


COHERE = {
  "cohere2": Row(
    "Cohere2ForCausalLM", HF, _read, _write,
    TYPES | {
      "attention_bias": bool, "layer_norm_eps": _NUMBER, "logit_scale": _NUMBER,
      "sliding_window_pattern": functools.partial(checks.whole, least=1),
    },
    {"tie_word_embeddings": True, "max_position_embeddings": 8192},
    # Second places for what the program has anyway.
    idle={
      "order_of_interleaved_layers": ("local_attn_first",), "use_parallel_block": (True,),
      "position_embedding_type": ("rope_gptj",), "rotary_pct": (1,), "use_qk_norm": (False,),
      "use_gated_activation": (True,), "use_embedding_sharing": (True,), "layer_switch": ...,
      "use_parallel_embedding": ...,
    },
  ),
}  # fmt: skip
