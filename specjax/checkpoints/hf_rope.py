"""The rotary embedding in a model's config.json, as Hugging Face writes it, to and from ours."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from specjax import checks
from specjax.checkpoints import harmless
from specjax.models.config import RopeScaling

_POSITIVE = functools.partial(checks.number, above=0)
_SIZE = functools.partial(checks.whole, least=1)
_GROWTH = "llama_4_scaling_beta"
_SCHEMA = {
  "rope_type": str, "type": str, "rope_theta": _POSITIVE, "partial_rotary_factor": float,
  "factor": _POSITIVE, "low_freq_factor": _POSITIVE, "high_freq_factor": _POSITIVE,
  "original_max_position_embeddings": _SIZE, "beta_slow": _POSITIVE, "beta_fast": _POSITIVE,
  "attention_factor": _POSITIVE, "mscale": _POSITIVE, "mscale_all_dim": _POSITIVE, "truncate": bool,
  _GROWTH: _POSITIVE, "short_factor": tuple[float, ...], "long_factor": tuple[float, ...],
}  # fmt: skip
_LENGTH = "original_max_position_embeddings"
_LLAMA3 = {"low": "low_freq_factor", "high": "high_freq_factor", "original_length": _LENGTH}
_YARN = {"low": "beta_slow", "high": "beta_fast", "attention": "attention_factor",
         "whole_pairs": "truncate", "original_length": _LENGTH}  # fmt: skip
_FACTORS = {"short": "short_factor", "long": "long_factor"}
_LONG = _FACTORS | {"attention": "attention_factor", "original_length": _LENGTH}
_NAMES: dict[str, dict[str, str]] = {
  "linear": {}, "llama3": _LLAMA3, "yarn": _YARN, "longrope": _LONG,
  "proportional": {"share": "partial_rotary_factor"},
}  # fmt: skip
_NEEDED: dict[str, tuple[str, ...]] = {
  "default": (), "linear": ("factor",), "yarn": ("factor",), "proportional": (),
  "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
  "longrope": tuple(_FACTORS.values()),
}  # fmt: skip
_ALONE = {"proportional": "gemma4_text", "longrope": "phi3"}  # kinds of one family
_IN_PART = ("llada2_moe", "phi3", "glm", "glm4", "glm4_moe", "qwen3_next", "qwen3_5_text",
            "qwen3_5_moe_text", "bailing_moe_v2", "minimax_m2")  # fmt: skip
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", _LENGTH)
_OF_YARN = (*_YARN.values(), "mscale", "mscale_all_dim")


def read(
  raw: Mapping[str, Any], known: Mapping[str, Any], family: str, where: str
) -> tuple[float, RopeScaling | None, float]:
  """Base, scaling and the share of a head that turns.

  They are in `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`. As transformers
  has it, a `rope_scaling` stands for all of `rope_parameters`, and what is inside wins over
  `rope_theta` and `partial_rotary_factor` beside it.

  Args:
    raw, known: config.json as it is, and its checked values by the keys that most families use.
    where: the file, for messages.

  It raises ValueError where a scaling is unknown, lacks a number or has a key that its kind does
  not read, where two places give another original length, and where only part of a head turns in a
  family that has whole ones.
  """
  key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
  inside = f"{where}: {key}"
  if not isinstance(raw.get(key) or {}, dict):
    checks.refuse(inside, raw[key], "an object or null")
  rope = checks.fields_of(raw.get(key) or {}, _SCHEMA, inside)
  theta = rope.get("rope_theta", known.get("rope_theta", 10000.0))
  kind = rope.get("rope_type", rope.get("type", "default"))
  known_kinds = [x for x in _NEEDED if _ALONE.get(x, family) == family]
  checks.choice(f"{where}: rope_type", kind, known_kinds)
  for name in _NEEDED[kind]:
    if name not in rope:
      raise ValueError(f"{where}: the {kind} rope scaling lacks {name!r}.")
  used = {*_ALWAYS, *_NEEDED[kind], *(_OF_YARN if kind == "yarn" else ())}
  used |= {"factor", "attention_factor"} if kind == "longrope" else set()
  if kind == "proportional":
    used |= {"factor"}
    rope = {"factor": 1.0, "partial_rotary_factor": 1.0, **rope}
  if grows := kind == "yarn" and family == "ministral3":
    used |= {_GROWTH, "max_position_embeddings"}
  harmless.known_keys(raw.get(key) or {}, inside, used, harmless.ROPE)
  share = rope.get("partial_rotary_factor", known.get("partial_rotary_factor", 1.0))
  if kind == "proportional":
    share = 1.0
  if share != 1.0 and family not in _IN_PART:
    checks.refuse(f"{where}: partial_rotary_factor", share, "1, for whole heads are rotated")
  if kind == "default":
    return theta, None, share
  names = _NAMES[kind]
  beside = checks.fields_of(raw, {_LENGTH: _SIZE}, where).get(_LENGTH)
  if beside is not None and rope.get(_LENGTH, beside) != beside:
    raise ValueError(
      f"{where}: {_LENGTH}={beside}, and in {key} it is {rope[_LENGTH]}: the two must be the same."
    )
  rope = {_LENGTH: beside or known.get("max_position_embeddings", 2048), **rope}
  if kind == "yarn":
    rope = _yarn(rope)
  if kind == "longrope":
    rope = _longrope(rope, known, share, inside)
  limits = {ours: rope[name] for ours, name in names.items()}
  same = kind == "llama3" and limits["low"] == limits["high"]  # Llama 4
  if "low" in limits and not (same or limits["low"] < limits["high"]):
    checks.refuse(
      f"{where}: {names['low']}", limits["low"], f"a number below {names['high']}={limits['high']}"
    )
  growth = rope.get(_GROWTH, 0.0) if grows else 0.0
  return theta, RopeScaling(kind, rope["factor"], **limits, growth=growth), share


def _yarn(rope: Mapping[str, Any]) -> dict[str, Any]:
  """A YaRN scaling with what a file leaves out, by the paper and as transformers fills it in."""

  def spread(weight: float) -> float:
    return 0.1 * weight * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0

  of_one, of_all = rope.get("mscale", 0), rope.get("mscale_all_dim", 0)
  attention = spread(of_one) / spread(of_all) if of_one and of_all else spread(1)
  absent = {"beta_slow": 1.0, "beta_fast": 32.0, "truncate": True, "attention_factor": attention}
  return {**absent, **rope}


def _longrope(
  rope: Mapping[str, Any], known: Mapping[str, Any], share: float, where: str
) -> dict[str, Any]:
  """A LongRoPE scaling with what a file leaves out, as transformers fills it in."""
  width = known.get("head_dim", known["hidden_size"] // known["num_attention_heads"])
  for key in _FACTORS.values():
    if len(rope[key]) != int(width * share) // 2 or min(rope[key]) <= 0:
      wanted = f"{int(width * share) // 2} numbers above 0, one for each pair that turns"
      checks.refuse(f"{where}: {key}", rope[key], wanted)
  factor = rope.get("factor", known.get("max_position_embeddings", 2048) / rope[_LENGTH])
  attention = math.sqrt(1 + math.log(factor) / math.log(rope[_LENGTH])) if factor > 1 else 1.0
  return {"factor": factor, "attention_factor": attention, **rope}


def write(scaling: RopeScaling | None) -> dict[str, Any] | None:
  """`rope_scaling` of config.json."""
  if scaling is None or scaling.kind == "none":
    return None
  limits = {key: getattr(scaling, ours) for ours, key in _NAMES[scaling.kind].items()}
  growth = {_GROWTH: scaling.growth} if scaling.growth else {}
  return {"rope_type": scaling.kind, "factor": scaling.factor, **limits, **growth}
