"""Families that differ from Llama in a detail: SmolLM3, Granite 3 and 4, Seed-OSS, Phi-3, ERNIE 4.5
and Helium."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import FULL, Found, Row, alike, kinds_of
from specjax.models.config import Config

_NUMBER = functools.partial(checks.number, above=0)
_WINDOW = functools.partial(checks.whole, least=1)
_FUSED = HF | dict.fromkeys("qkv", "self_attn.qkv_proj") | dict.fromkeys(
  ("gate", "up"), "mlp.gate_up_proj"
)  # fmt: skip
_MULTIPLIERS = {
  "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
  "attention_multiplier": "attention_scale",
}  # fmt: skip


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


def _granite(found: Found) -> dict[str, Any]:
  own = {ours: float(found.known.get(key, 1)) for key, ours in _MULTIPLIERS.items()}
  own["logit_scale"] = 1 / found.known.get("logits_scaling", 1)
  bias = found.known.get("attention_bias", False)
  return own | {"out_bias": bias} | found.rope().fields


def _write_granite(c: Config) -> dict[str, Any]:
  own = {key: getattr(c, ours) for key, ours in _MULTIPLIERS.items()}
  return own | {"logits_scaling": round(1 / c.logit_scale, 9), "attention_bias": c.qkv_bias}


def _granite4(found: Found) -> dict[str, Any]:
  """Of the hybrid family the models without Mamba layers and experts."""
  types = found.known.get("layer_types", ())
  if not types or set(types) - {FULL, "attention"}:
    said = f"{FULL} in all layers: Mamba layers are missing"
    checks.refuse(f"{found.where}: layer_types", types or None, said)
  if count := found.known.get("num_local_experts", 8):
    checks.refuse(f"{found.where}: num_local_experts", count, "0: experts are missing")
  turns = found.known.get("position_embedding_type") == "rope"
  own = _granite(found) | {"mlp_width": found.known.get("shared_intermediate_size", 1024)}
  return own if turns else own | {"rotary_dim": 0}


def _write_granite4(c: Config) -> dict[str, Any]:
  return _write_granite(c) | {
    "layer_types": [FULL] * c.layers, "shared_intermediate_size": c.mlp_width,
    "position_embedding_type": None if c.rotary_dim == 0 else "rope", "num_local_experts": 0,
    "mamba_n_heads": 1,  # of layers that are not there; it has to divide a width
  }  # fmt: skip


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
  "granite": Row(
    "GraniteForCausalLM", HF, _granite, _write_granite,
    {**dict.fromkeys((*_MULTIPLIERS, "logits_scaling"), _NUMBER), "attention_bias": bool},
  ),
  "granitemoehybrid": Row(
    "GraniteMoeHybridForCausalLM",
    HF
    | dict.fromkeys(("gate", "up"), "shared_mlp.input_linear")
    | {"down": "shared_mlp.output_linear"},
    _granite4,
    _write_granite4,
    {
      **dict.fromkeys((*_MULTIPLIERS, "logits_scaling"), _NUMBER),
      "attention_bias": bool, "layer_types": tuple[str, ...], "position_embedding_type": str,
      "shared_intermediate_size": _WINDOW, "num_local_experts": checks.whole,
    },
    idle={"mamba_*": ..., "num_experts_per_tok": ..., "time_step_limit": ...},
  ),
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
