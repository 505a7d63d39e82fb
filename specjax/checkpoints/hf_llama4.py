"""Llama 4: attention in chunks, layers whose queries grow and do not turn, and experts whose
inputs are weighed."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_rope
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import FULL, Found, Row, alike, kinds_of
from specjax.models.config import Config, Experts, RopeScaling

_SIZE = functools.partial(checks.whole, least=1)
_NUMBER = functools.partial(checks.number, above=0)
_CHUNKED = "chunked_attention"
_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_NAMES = HF | {name: f"feed_forward.{own}" for name, own in _MLP.items()} | {
  f"shared_{name}": f"feed_forward.shared_expert.{own}" for name, own in _MLP.items()
} | {
  "router": "feed_forward.router", "experts_in": "feed_forward.experts.gate_up_proj",
  "experts_out": "feed_forward.experts.down_proj",
}  # fmt: skip


def _listed(found: Found, key: str, usual: list[Any]) -> list[Any]:
  """What a file says of every layer; an empty list says nothing."""
  said = list(found.known.get(key, ())) or usual
  if len(said) != len(usual):
    checks.refuse(f"{found.where}: {key}", said, f"a list of {len(usual)}")
  return said


def _experts(found: Found, layers: int) -> Experts | None:
  known, step = found.known, found.known.get("interleave_moe_layer_step", 1)
  sparse = found.value("moe_layers", tuple(range(step - 1, layers, step)))
  if not sparse:
    return None
  return Experts(
    known.get("num_local_experts", 16), known.get("num_experts_per_tok", 1),
    known["intermediate_size"], router="input",
    shared_width=known["intermediate_size"],
    sparse_layers=() if len(sparse) == layers else tuple(sorted(sparse)),
  )  # fmt: skip


def _read(found: Found) -> dict[str, Any]:
  known, rope, layers = found.known, found.rope(), found.known["num_hidden_layers"]
  every, chunk = known.get("no_rope_layer_interval", 4), found.value("attention_chunk_size", 8192)
  turns = _listed(found, "no_rope_layers", [i % every for i in range(1, layers + 1)])
  usual = [_CHUNKED if each and chunk else FULL for each in turns]
  types = _listed(found, "layer_types", usual)
  if not set(types) <= {FULL, _CHUNKED}:
    checks.refuse(f"{found.where}: layer_types", types, f"{layers} of {FULL} and {_CHUNKED}")
  grows = RopeScaling(
    "none", 1.0, original_length=known.get("floor_scale", 8192),
    growth=known.get("attn_scale", 0.1), ahead=1,
  )  # fmt: skip
  still = dataclasses.replace(
    rope, rotary_dim=0, rope_scaling=grows if known.get("attn_temperature_tuning", True) else None
  )
  return {
    "mlp_width": known.get("intermediate_size_mlp", 16384), "neighbours": True,
    "unit_qk": known.get("use_qk_norm", True), "experts": _experts(found, layers),
    "out_bias": known.get("attention_bias", False),
    **alike(
      dataclasses.replace(rope if turn else still, chunk=chunk if kind == _CHUNKED else None)
      for turn, kind in zip(turns, types, strict=True)
    ),
  }  # fmt: skip


def _write(c: Config) -> dict[str, Any]:
  kinds, x = kinds_of(c), c.experts
  turning = next((kind for kind in kinds if kind.rotary_dim != 0), kinds[0])
  grows = next((kind.rope_scaling for kind in kinds if kind.rotary_dim == 0), None)
  raw: dict[str, Any] = {
    "rope_theta": turning.rope_theta, "rope_scaling": hf_rope.write(turning.rope_scaling),
    "no_rope_layers": [int(kind.rotary_dim != 0) for kind in kinds],
    "layer_types": [_CHUNKED if kind.chunk else FULL for kind in kinds],
    "attention_chunk_size": next((kind.chunk for kind in kinds if kind.chunk), None),
    "intermediate_size_mlp": c.mlp_width, "use_qk_norm": c.unit_qk, "attention_bias": c.qkv_bias,
    "attn_temperature_tuning": grows is not None, "moe_layers": [],
  }  # fmt: skip
  if grows is not None:
    raw |= {"attn_scale": grows.growth, "floor_scale": grows.original_length}
  if x is not None:
    raw |= {
      "intermediate_size": x.width, "num_local_experts": x.count, "num_experts_per_tok": x.chosen,
      "moe_layers": [i for i in range(c.layers) if x.is_in(i)],
    }  # fmt: skip
  return raw


LLAMA4 = {
  "llama4_text": Row(
    "Llama4ForCausalLM", _NAMES, _read, _write,
    {
      **dict.fromkeys(
        ("num_local_experts", "num_experts_per_tok", "intermediate_size_mlp", "floor_scale",
         "interleave_moe_layer_step", "no_rope_layer_interval", "attention_chunk_size"), _SIZE
      ),
      **dict.fromkeys(("moe_layers", "no_rope_layers"), tuple[int, ...]),
      **dict.fromkeys(("use_qk_norm", "attn_temperature_tuning", "attention_bias"), bool),
      "layer_types": tuple[str, ...], "attn_scale": _NUMBER,
    },
    {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
     "max_position_embeddings": 131072},
    idle={"for_llm_compressor": ...},
  ),
}  # fmt: skip
