"""Gemma 1 to 3: GELU, norms by 1 + w, scaled embeddings; caps in the second, norms on q and k in
the third."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import FULL, LOCAL, TYPES, Found, Row, first, types_of
from specjax.models.config import Config

_NUMBER = functools.partial(checks.number, above=0)
_GELU = functools.partial(checks.choice, accepted=["gelu_pytorch_tanh"])
_OLD_GELU = functools.partial(checks.choice, accepted=["gelu", "gelu_pytorch_tanh"])
_FOUR_NORMS = HF | {
  "attention_out_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
  "mlp_out_norm": "post_feedforward_layernorm",
}  # fmt: skip
_KEYS = {"attention_bias": bool, "hidden_act": _OLD_GELU, "hidden_activation": _GELU}
_CAPS = {"attn_logit_softcapping": _NUMBER, "final_logit_softcapping": _NUMBER}
_ABSENT = {
  "head_dim": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
  "max_position_embeddings": 8192, "num_key_value_heads": 4,
}  # fmt: skip
_HARMLESS = {"use_bidirectional_attention": (False,)}


def _scaled(found: Found) -> dict[str, Any]:
  return {
    "activation": "gelu",
    "embedding_scale": found.known["hidden_size"] ** 0.5,
    "out_bias": found.known.get("attention_bias", False),
  }


def _first(found: Found) -> dict[str, Any]:
  return _scaled(found) | found.rope().fields


def _four_norms(found: Found, attention_cap: float | None, cap: float | None) -> dict[str, Any]:
  """What the second and the third share, with the caps of absent keys."""
  scale = found.known.get("query_pre_attn_scalar", 256)
  return _scaled(found) | {
    "norms": "both",
    "attention_scale": None if scale == found.known["head_dim"] else scale**-0.5,
    "attention_cap": found.value("attn_logit_softcapping", attention_cap),
    "logit_cap": found.value("final_logit_softcapping", cap),
  }


def _second(found: Found) -> dict[str, Any]:
  rope = found.rope()
  local = dataclasses.replace(rope, window=found.known.get("sliding_window", 4096))
  return _four_norms(found, 50.0, 30.0) | found.by_type(rope, local, 2)


def _third(found: Found) -> dict[str, Any]:
  known = found.known
  full = found.rope(FULL, known.get("rope_theta", 1e6))
  local = found.rope(LOCAL, known.get("rope_local_base_freq", 1e4))
  local = dataclasses.replace(local, window=known.get("sliding_window", 4096))
  every = known.get("sliding_window_pattern", 6)
  return _four_norms(found, None, None) | {"qk_norm": True} | found.by_type(full, local, every)


def _write(c: Config) -> dict[str, Any]:
  gelu = "gelu_pytorch_tanh"
  return {"hidden_act": gelu, "hidden_activation": gelu, "attention_bias": c.qkv_bias}


def _write_four_norms(c: Config) -> dict[str, Any]:
  scale = c.head_dim if c.attention_scale is None else round(c.attention_scale**-2)
  return _write(c) | {
    "query_pre_attn_scalar": scale, "attn_logit_softcapping": c.attention_cap,
    "final_logit_softcapping": c.logit_cap, "layer_types": types_of(c),
    "sliding_window": first(c, LOCAL).window,
  }  # fmt: skip


def _write_third(c: Config) -> dict[str, Any]:
  return _write_four_norms(c) | {"rope_local_base_freq": first(c, LOCAL).rope_theta}


_FOUR_KEYS = _KEYS | _CAPS | TYPES | {"query_pre_attn_scalar": _NUMBER}
GEMMA = {
  "gemma": Row(
    "GemmaForCausalLM", HF, _first, _write, _KEYS, _ABSENT | {"num_key_value_heads": 16}, True,
    _HARMLESS,
  ),
  "gemma2": Row(
    "Gemma2ForCausalLM", _FOUR_NORMS, _second, _write_four_norms, _FOUR_KEYS, _ABSENT, True,
    _HARMLESS,
  ),
  "gemma3_text": Row(
    "Gemma3ForCausalLM", _FOUR_NORMS, _third, _write_third,
    _FOUR_KEYS | {
      "rope_local_base_freq": _NUMBER,
      "sliding_window_pattern": functools.partial(checks.whole, least=1),
    },
    _ABSENT | {"max_position_embeddings": 131072}, True, _HARMLESS,
  ),
}  # fmt: skip
