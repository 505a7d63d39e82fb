"""The rotary embedding in a model's config.json, as Hugging Face writes it, to and from ours."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from specjax import checks, schema
from specjax.models.config import RopeScaling

_POSITIVE = functools.partial(checks.number, above=0)
_SIZE = functools.partial(checks.whole, least=1)
_SCHEMA = {
  "rope_type": str, "type": str, "rope_theta": _POSITIVE, "partial_rotary_factor": float,
  "factor": _POSITIVE, "low_freq_factor": _POSITIVE, "high_freq_factor": _POSITIVE,
  "original_max_position_embeddings": _SIZE, "beta_slow": _POSITIVE, "beta_fast": _POSITIVE,
  "attention_factor": _POSITIVE, "mscale": _POSITIVE, "mscale_all_dim": _POSITIVE, "truncate": bool,
}  # fmt: skip
_LLAMA3 = {"low": "low_freq_factor", "high": "high_freq_factor",
           "original_length": "original_max_position_embeddings"}  # fmt: skip
_YARN = {"low": "beta_slow", "high": "beta_fast", "attention": "attention_factor",
         "whole_pairs": "truncate",
         "original_length": "original_max_position_embeddings"}  # fmt: skip
_NAMES: dict[str, dict[str, str]] = {"linear": {}, "llama3": _LLAMA3, "yarn": _YARN}


def read(
  raw: Mapping[str, Any], known: Mapping[str, Any], family: str, where: str
) -> tuple[float, RopeScaling | None, float]:
  """Base, scaling and the share of a head that turns.

  They are in `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.

  Args:
    raw, known: config.json as it is, and its checked values by the keys that most families use.
    where: the file, for messages.

  It raises ValueError where a scaling is unknown or lacks a number, or only part of a head turns in
  a family that has whole ones.
  """
  key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
  if not isinstance(raw.get(key) or {}, dict):
    checks.refuse(f"{where}: {key}", raw[key], "an object or null")
  rope = schema.fields(raw.get(key) or {}, _SCHEMA, f"{where}: {key}")
  theta = rope.get("rope_theta", known.get("rope_theta", 10000.0))
  kind = rope.get("rope_type", rope.get("type", "default"))
  needed = {"default": [], "linear": ["factor"], "llama3": ["factor", *_LLAMA3.values()],
            "yarn": ["factor"]}  # fmt: skip
  checks.choice(f"{where}: rope_type", kind, needed)
  for name in needed[kind]:
    if name not in rope:
      raise ValueError(f"{where}: the {kind} rope scaling lacks {name!r}.")
  share = rope.get("partial_rotary_factor", known.get("partial_rotary_factor", 1.0))
  if share != 1.0 and family != "llada2_moe":
    checks.refuse(f"{where}: partial_rotary_factor", share, "1, for whole heads are rotated")
  if kind == "default":
    return theta, None, share
  names = _NAMES[kind]
  if kind == "yarn":
    rope = _yarn(rope, known.get("max_position_embeddings", 2048))
  limits = {ours: rope[name] for ours, name in names.items()}
  if limits and not limits["low"] < limits["high"]:
    checks.refuse(f"{where}: {names['low']}", limits["low"],
                  f"a number below {names['high']}={limits['high']}")  # fmt: skip
  return theta, RopeScaling(kind, rope["factor"], **limits), share


def _yarn(rope: Mapping[str, Any], length: int) -> dict[str, Any]:
  """A YaRN scaling with what a file leaves out, by the paper and as transformers fills it in."""

  def spread(weight: float) -> float:
    return 0.1 * weight * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0

  of_one, of_all = rope.get("mscale", 0), rope.get("mscale_all_dim", 0)
  attention = spread(of_one) / spread(of_all) if of_one and of_all else spread(1)
  absent = {"beta_slow": 1.0, "beta_fast": 32.0, "truncate": True, "attention_factor": attention,
            "original_max_position_embeddings": length}  # fmt: skip
  return {**absent, **rope}


def write(scaling: RopeScaling | None) -> dict[str, Any] | None:
  """`rope_scaling` of config.json."""
  if scaling is None:
    return None
  limits = {key: getattr(scaling, ours) for ours, key in _NAMES[scaling.kind].items()}
  return {"rope_type": scaling.kind, "factor": scaling.factor, **limits}
