"""Families that differ from Llama in a detail: SmolLM3, Seed-OSS, Phi-3, ERNIE 4.5 and Helium."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import Found, Row, alike, kinds_of
from specjax.models.config import Config

_WINDOW = functools.partial(checks.whole, least=1)
_FUSED = HF | dict.fromkeys("qkv", "self_attn.qkv_proj") | dict.fromkeys(
  ("gate", "up"), "mlp.gate_up_proj"
)  # fmt: skip


def _smollm3(found: Found) -> dict[str, Any]:
  """Some layers have no rotary embedding, one of four where the file does not say which."""
  known, where = found.known, found.where
  layers, every = known["num_hidden_layers"], known.get("no_rope_layer_interval", 4)
  turns = known.get("no_rope_layers", tuple(i % every for i in range(1, layers + 1)))
  if len(turns) != layers:
    checks.refuse(f"{where}: no_rope_layers", turns, f"{layers} numbers")
  rope = found.sees_all()
  still = dataclasses.replace(rope, rotary_dim=0)
  return {"out_bias": known.get("attention_bias", False)} | alike(
    rope if each else still for each in turns
  )


def _write_smollm3(c: Config) -> dict[str, Any]:
  turns = [int(kind.rotary_dim != 0) for kind in kinds_of(c)]
  return {"attention_bias": c.qkv_bias, "no_rope_layers": turns}


def _seed_oss(found: Found) -> dict[str, Any]:
  return {"out_bias": found.known.get("attention_out_bias", False)} | found.rope().fields


def _write_seed_oss(c: Config) -> dict[str, Any]:
  return {"attention_bias": c.qkv_bias, "attention_out_bias": c.out_bias}


def _phi3(found: Found) -> dict[str, Any]:
  rope = found.rope()
  if rope.rope_scaling is not None and rope.rope_scaling.kind != "longrope":
    said = "default or longrope in Phi-3"
    checks.refuse(f"{found.where}: rope_type", rope.rope_scaling.kind, said)
  return dataclasses.replace(rope, window=found.value("sliding_window")).fields


def _write_phi3(c: Config) -> dict[str, Any]:
  share = 1.0 if c.rotary_dim is None else c.rotary_dim / c.head_dim
  own = {"sliding_window": c.window, "partial_rotary_factor": share}
  if c.rope_scaling is not None:
    own["original_max_position_embeddings"] = c.rope_scaling.original_length
  return own


def _ernie(found: Found) -> dict[str, Any]:
  return {"neighbours": True, **found.rope().fields}


def _helium(found: Found) -> dict[str, Any]:
  """Its matrix behind attention is square."""
  c = found.known
  if (wide := c["num_attention_heads"] * c["head_dim"]) != c["hidden_size"]:
    checks.refuse(f"{found.where}: hidden_size", c["hidden_size"], f"{wide}, that of all heads")
  return _ernie(found)


NEAR_LLAMA = {
  "seed_oss": Row(
    "SeedOssForCausalLM", HF, _seed_oss, _write_seed_oss,
    {"attention_bias": bool, "attention_out_bias": bool},
    {"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8,
     "max_position_embeddings": 524288},
  ),
  "phi3": Row(
    "Phi3ForCausalLM", _FUSED, _phi3, _write_phi3,
    {"sliding_window": _WINDOW, "partial_rotary_factor": float},
    {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
  ),
  "smollm3": Row(
    "SmolLM3ForCausalLM", HF, _smollm3, _write_smollm3,
    {
      "attention_bias": bool, "no_rope_layers": tuple[int, ...], "no_rope_layer_interval": _WINDOW,
      "layer_types": tuple[str, ...],
    },
    {"rope_theta": 2e6, "tie_word_embeddings": True, "max_position_embeddings": 32768,
     "num_key_value_heads": 4},
    idle={"sliding_window": ..., "max_window_layers": ...},
  ),
  "ernie4_5": Row(
    "Ernie4_5ForCausalLM", HF, _ernie, lambda c: {}, {},
    {"rope_theta": 5e5, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True,
     "max_position_embeddings": 131072, "rms_norm_eps": 1e-5},
    idle={"use_bias": (False,)},
  ),
  "helium": Row(
    "HeliumForCausalLM", HF, _helium, lambda c: {"attention_bias": c.qkv_bias},
    {"attention_bias": bool},
    {"rope_theta": 1e5, "num_key_value_heads": 20, "head_dim": 128, "rms_norm_eps": 1e-8,
     "max_position_embeddings": 4096},
  ),
}  # fmt: skip
