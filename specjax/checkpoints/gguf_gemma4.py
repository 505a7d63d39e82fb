"""Gemma 3n and 4 in GGUF files, whose layers have sizes by their kind.

The pairs of Gemma 4 that turn where everything is seen are those that a tensor divides by 1, see
`gguf_rope`.
"""

import functools
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax import checks
from specjax.checkpoints.hf_rows import FULL, LOCAL

_SIZE = functools.partial(checks.whole, least=1)
_LAUREL = "blk.0.laurel_l.weight"
_NEVER = 1e20  # a divisor from which on a pair does not turn


def _each(name: str, value: Any) -> tuple[int, ...] | int:
  """A size of each layer, or of all."""
  return tuple(_SIZE(name, x) for x in value) if isinstance(value, list) else _SIZE(name, value)


def _cuts(name: str, value: Any) -> tuple[float, ...]:
  """Numbers, or minus infinity where nothing is cut off."""
  listed = checks.sequence(name, value, "a list")
  return tuple(x if x == -np.inf else checks.number(name, x) for x in listed)


_CAP = functools.partial(checks.number, above=0)
_BOTH: dict[str, tuple[Any, str]] = {
  "attention.sliding_window": (_SIZE, "sliding_window"),
  "attention.sliding_window_pattern": (tuple[bool, ...], "slides"),
  "attention.shared_kv_layers": (checks.whole, "num_kv_shared_layers"),
  "feed_forward_length": (_each, "widths"),
  "embedding_length_per_layer_input": (checks.whole, "hidden_size_per_layer_input"),
  "final_logit_softcapping": (_CAP, "final_logit_softcapping"),
}
KEYS: dict[str, tuple[Any, str]] = _BOTH | {
  "attention.key_length": (_SIZE, "global_head_dim"),
  "attention.key_length_swa": (_SIZE, "head_dim"),
  "attention.value_length_swa": (_SIZE, "value_length_swa"),
  "rope.dimension_count_swa": (_SIZE, "dimension_count_swa"),
  "attention.head_count_kv": (_each, "kv_heads"),
  "rope.freq_base_swa": (float, "local_theta"),
  "expert_count": (_SIZE, "num_experts"), "expert_used_count": (_SIZE, "top_k_experts"),
  "expert_feed_forward_length": (_SIZE, "moe_intermediate_size"),
}  # fmt: skip
NEEDED = (
  "attention.key_length", "attention.key_length_swa", "attention.sliding_window",
  "attention.sliding_window_pattern", "attention.head_count_kv",
)  # fmt: skip
KEYS_3N: dict[str, tuple[Any, str]] = _BOTH | {
  "altup.active_idx": (functools.partial(checks.whole, most=0), "altup_active_idx"),
  "altup.num_inputs": (functools.partial(checks.whole, least=2), "altup_num_inputs"),
  "activation_sparsity_scale": (_cuts, "deviations"),
}
NEEDED_3N = (
  "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers",
  "altup.num_inputs", "embedding_length_per_layer_input", "activation_sparsity_scale",
)  # fmt: skip


def known_3n(
  raw: Mapping[str, Any], tensors: Mapping[str, Any], stretch: np.ndarray | None, where: str
) -> dict[str, Any]:
  """`known` of Gemma 3n; of gates the file has the cut-off in deviations from their mean."""
  widths, cuts = raw["widths"], statistics.NormalDist()
  shares = [0.0 if x == -np.inf else round(cuts.cdf(x), 6) for x in raw["deviations"]]
  return {
    "layer_types": [LOCAL if x else FULL for x in raw["slides"]],
    "intermediate_size": list(widths) if isinstance(widths, tuple) else widths,
    "activation_sparsity_pattern": shares, "vocab_size_per_layer_input": raw["vocab_size"],
    "laurel_rank": int(tensors[_LAUREL].shape[-1]) if _LAUREL in tensors else 64,
    "rope_theta": raw.get("rope_theta", 1e4), "rope_local_base_freq": 1e4,
  }  # fmt: skip


def known(
  raw: Mapping[str, Any], tensors: Mapping[str, Any], stretch: np.ndarray | None, where: str
) -> dict[str, Any]:
  """What a config.json says, of what keys say, the names of tensors, and the divisors of pairs.

  It raises ValueError for sizes that do not fit each other, and for other divisors.
  """
  layers, slides = raw["num_hidden_layers"], raw["slides"]
  for name in ("value_length_swa", "dimension_count_swa"):
    if raw.get(name, raw["head_dim"]) != raw["head_dim"]:
      checks.refuse(f"{where}: {name}", raw[name], f"the length of keys, {raw['head_dim']}")

  def each(key: str) -> list[int]:
    found = raw[key]
    listed = list(found) if isinstance(found, tuple) else [found] * layers
    if len(listed) != layers:
      checks.refuse(f"{where}: {key}", listed, f"{layers} numbers, one a layer")
    return listed

  types = [LOCAL if x else FULL for x in slides]
  if len(types) != layers or types[-1] != FULL:
    checks.refuse(f"{where}: sliding_window_pattern", slides, f"{layers} of true, false the last")
  heads, widths = dict(zip(types, each("kv_heads"), strict=True)), each("widths")
  shared = raw.get("num_kv_shared_layers", 0)
  own = types[: layers - shared].index(FULL) if FULL in types[: layers - shared] else 0
  return {
    "layer_types": types, "num_key_value_heads": heads.get(LOCAL, heads[FULL]),
    "num_global_key_value_heads": heads[FULL], "intermediate_size": widths[0],
    "use_double_wide_mlp": widths[-1] == 2 * widths[0], "enable_moe_block": "num_experts" in raw,
    "attention_k_eq_v": f"blk.{own}.attn_v.weight" not in tensors,
    "vocab_size_per_layer_input": raw["vocab_size"],
    "hidden_size_per_layer_input": raw.get("hidden_size_per_layer_input", 0),
    "final_logit_softcapping": raw.get("final_logit_softcapping"),
    "rope_parameters": {
      LOCAL: {"rope_type": "default", "rope_theta": raw.get("local_theta", 1e4)},
      FULL: {
        "rope_type": "proportional", "rope_theta": raw.get("rope_theta", 1e4),
        "partial_rotary_factor": _share(raw, stretch, where),
      },
    },
  }  # fmt: skip


def _share(raw: Mapping[str, Any], stretch: np.ndarray | None, where: str) -> float:
  """The share of pairs that turn, the first, of the divisors of all."""
  if stretch is None:
    raise ValueError(f"{where} lacks tensor rope_freqs.weight.")
  turns = int((stretch == 1).sum())
  fits = (stretch[:turns] == 1).all() and (stretch[turns:] > _NEVER).all()
  if not fits or 2 * len(stretch) != raw["global_head_dim"]:
    said = f"{raw['global_head_dim'] // 2} numbers, ones and then such above {_NEVER:g}"
    checks.refuse(f"{where}: rope_freqs.weight", stretch.tolist(), said)
  return turns / len(stretch)
