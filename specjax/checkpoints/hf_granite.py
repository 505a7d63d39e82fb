"""Granite 3 and 4: a Llama with multipliers; Granite 4 may have layers of Mamba-2 and experts."""

import dataclasses
import functools
import math
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_experts
from specjax.checkpoints.hf_layout import HF
from specjax.checkpoints.hf_rows import FULL, Found, Row, alike, kinds_of
from specjax.models.config import Config, Experts, Mamba

_SIZE = functools.partial(checks.whole, least=1)
_MULTIPLIERS = {
  "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
  "attention_multiplier": "attention_scale",
}  # fmt: skip
_GRANITE4 = HF | dict.fromkeys(
  ("gate", "up", "shared_gate", "shared_up"), "shared_mlp.input_linear"
) | dict.fromkeys(("down", "shared_down"), "shared_mlp.output_linear") | {
  "router": "block_sparse_moe.router.layer", "experts_gate_up": "block_sparse_moe.input_linear",
  "experts_down": "block_sparse_moe.output_linear", "mamba_in": "mamba.in_proj",
  "mamba_kernel": "mamba.conv1d", "mamba_log_slope": "mamba.A_log",
  "mamba_time_bias": "mamba.dt_bias", "mamba_skip": "mamba.D", "mamba_norm": "mamba.norm",
  "mamba_out": "mamba.out_proj",
}  # fmt: skip
# What transformers calls both kinds of layers since version 5, and what published files do.
_ATTENDS, _MAMBA = (FULL, "attention"), ("linear_attention", "mamba")
_SIZES = {
  "heads": "mamba_n_heads", "head_dim": "mamba_d_head", "state": "mamba_d_state",
  "groups": "mamba_n_groups", "kernel": "mamba_d_conv",
}  # fmt: skip
_USUAL = Mamba(128, 64, 256)
_BIASES = {"mamba_conv_bias": True, "mamba_proj_bias": False}


def _scales(found: Found) -> dict[str, Any]:
  own = {ours: float(found.known.get(key, 1)) for key, ours in _MULTIPLIERS.items()}
  own["logit_scale"] = 1 / found.known.get("logits_scaling", 1)
  return own | {"out_bias": found.known.get("attention_bias", False)}


def _granite(found: Found) -> dict[str, Any]:
  return _scales(found) | found.rope().fields


def _write_granite(c: Config) -> dict[str, Any]:
  own = {key: getattr(c, ours) for key, ours in _MULTIPLIERS.items()}
  return own | {"logits_scaling": round(1 / c.logit_scale, 9), "attention_bias": c.qkv_bias}


def _mamba(found: Found) -> Mamba:
  known, where = found.known, found.where
  for key, only in _BIASES.items():
    if known.get(key, only) != only:
      checks.refuse(f"{where}: {key}", known[key], str(only).lower())
  sizes = {ours: known[key] for ours, key in _SIZES.items() if key in known}
  inner, heads = known.get("mamba_expand", 2) * known["hidden_size"], sizes.get("heads", 128)
  width = sizes.pop("head_dim", "auto")
  width = inner // heads if width == "auto" else width
  if heads * width != inner:
    said = f"as many heads of {width} as are {inner} wide together"
    checks.refuse(f"{where}: mamba_n_heads", heads, said)
  limit = known.get("time_step_limit", _USUAL.step)
  return dataclasses.replace(_USUAL, **sizes, head_dim=width, step=limit)


def _experts(found: Found, width: int) -> Experts | None:
  if not found.known.get("num_local_experts", 8):
    return None
  layers = found.known["num_hidden_layers"]
  own = hf_experts.read(found.raw, "granitemoehybrid", layers, found.where)
  assert own is not None
  return dataclasses.replace(own, shared_width=width)


def _granite4(found: Found) -> dict[str, Any]:
  known, layers = found.known, found.known["num_hidden_layers"]
  types = known.get("layer_types", ())
  some = {*types} & {*_ATTENDS}
  if len(types) != layers or not some or not {*types} <= {*_ATTENDS, *_MAMBA}:
    said = f"{layers} of attention, once at least, and mamba"
    checks.refuse(f"{found.where}: layer_types", types or None, said)
  width, full = known.get("shared_intermediate_size", 1024), found.rope()
  if known.get("position_embedding_type") != "rope":
    full = dataclasses.replace(full, rotary_dim=0)
  recurrence = _mamba(found) if {*types} & {*_MAMBA} else None
  kinds = (
    full if each in _ATTENDS else dataclasses.replace(full, recurrence=recurrence) for each in types
  )
  own = {"mlp_width": width, "experts": _experts(found, width)}
  return _scales(found) | own | alike(kinds)


def _write_granite4(c: Config) -> dict[str, Any]:
  x, kinds = c.experts, kinds_of(c)
  full = c.of_layer(c.last_attention)
  raw = _write_granite(c) | {
    "layer_types": [(_ATTENDS if kind.recurrence is None else _MAMBA)[1] for kind in kinds],
    "shared_intermediate_size": c.mlp_width, "num_local_experts": 0,
    "position_embedding_type": None if full.rotary_dim == 0 else "rope",
    "mamba_n_heads": 1,  # of layers that are not there; it has to divide a width
  }  # fmt: skip
  if x is not None:
    raw |= {"num_local_experts": x.count, "num_experts_per_tok": x.chosen}
    raw["intermediate_size"] = x.width
  mamba = next((kind.recurrence for kind in kinds if isinstance(kind.recurrence, Mamba)), None)
  if mamba is not None:
    raw |= {key: getattr(mamba, ours) for ours, key in _SIZES.items()} | _BIASES
    raw["mamba_expand"] = mamba.heads * mamba.head_dim // c.width
    if mamba.step != _USUAL.step:
      raw["time_step_limit"] = list(mamba.step)
  return raw


def _width(name: str, value: Any) -> int | str:
  return "auto" if value == "auto" else _SIZE(name, value)


def _limit(name: str, value: Any) -> tuple[float, float]:
  """Two numbers, of which the second may be infinite, as Python or transformers writes that."""
  held = [*checks.sequence(name, value, "two numbers")]
  if len(held) != 2:
    checks.refuse(name, value, "two numbers")
  least = checks.number(f"{name}[0]", held[0], 0)
  if held[1] in (math.inf, {"__float__": "Infinity"}):
    return least, math.inf
  return least, checks.number(f"{name}[1]", held[1], above=least)


_KEYS = {
  **dict.fromkeys((*_MULTIPLIERS, "logits_scaling"), functools.partial(checks.number, above=0)),
  "attention_bias": bool,
}  # fmt: skip
GRANITE = {
  "granite": Row("GraniteForCausalLM", HF, _granite, _write_granite, _KEYS),
  "granitemoehybrid": Row(
    "GraniteMoeHybridForCausalLM", _GRANITE4, _granite4, _write_granite4,
    {
      **_KEYS, **dict.fromkeys(_SIZES.values(), _SIZE), **dict.fromkeys(_BIASES, bool),
      "mamba_d_head": _width, "mamba_expand": _SIZE, "time_step_limit": _limit,
      "layer_types": tuple[str, ...], "position_embedding_type": str,
      "shared_intermediate_size": _SIZE, "num_local_experts": checks.whole,
    },
    idle={"mamba_chunk_size": ..., "normalization_function": ("rmsnorm",)},
    more=("num_experts_per_tok",),
  ),
}  # fmt: skip
