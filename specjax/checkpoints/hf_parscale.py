"""ParScale's directories: a Llama, Mistral or Qwen, its streams' prefixes, and the MLP over them.

Tensors have the names of the published program (arXiv 2505.10475), whose models are Qwen2's.
"""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_config, hf_layout
from specjax.checkpoints.hf_layout import HF, Fusion, Layout
from specjax.models.parscale import STREAMS, ParScale

FAMILY = "qwen2_parscale"
_OF = "specjax_streams_of"  # the family of the network; absent, it is Qwen2
_SIZE = functools.partial(checks.whole, least=1)
_KEYS: dict[str, Any] = {
  "parscale_n": _SIZE, "parscale_n_tokens": _SIZE, "parscale_attn_smooth": float,
  _OF: functools.partial(checks.choice, accepted=["llama", "mistral", "qwen2", "qwen3"]),
}  # fmt: skip


def _network(raw: Mapping[str, Any]) -> dict[str, Any]:
  own = {key: value for key, value in raw.items() if key not in _KEYS}
  return {**own, "model_type": raw.get(_OF, "qwen2")}


def from_json(raw: Mapping[str, Any], where: str = "config.json") -> ParScale:
  """`Family.from_json`."""
  known = checks.fields_of(raw, _KEYS, where, ["parscale_n"])
  if known["parscale_n"] == 1 and _OF not in known:  # the program then reads no prefix
    checks.refuse(f"{where}: parscale_n", 1, "at least 2")
  numbers = known.get("parscale_n_tokens", 48), known.get("parscale_attn_smooth", 0.01)
  lm = hf_config.from_json(_network(raw), where)
  try:
    return ParScale(lm, known["parscale_n"], *numbers)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None


def to_json(config: ParScale) -> dict[str, Any]:
  """The config.json; ValueError for a network of another family."""
  raw = hf_config.to_json(config.lm)
  return raw | {
    "model_type": FAMILY, "architectures": ["Qwen2ParScaleForCausalLM"],
    _OF: _KEYS[_OF]("model", raw["model_type"]), "parscale_n": config.streams,
    "parscale_n_tokens": config.prefix, "parscale_attn_smooth": config.smoothing,
  }  # fmt: skip


def layout(config: ParScale) -> Layout:
  """`Family.layout`."""
  c, P, E = config.lm, config.streams, config.width
  table = hf_layout.layout(c, HF)
  for i in range(c.layers):
    for name in ("prefix_k", "prefix_v"):
      part = Fusion(
        f"model.layers.{i}.self_attn.{name}", (P, c.kv_heads, config.prefix, c.head_dim)
      )
      table[STREAMS, f"layer_{i}", name] = [part]
  shapes = {"aggregate_in": (0, E, E * P), "aggregate_out": (2, P, E)} if P > 1 else {}
  for name, (number, rows, into) in shapes.items():
    theirs = f"model.aggregate_layer.{number}"
    table[STREAMS, name] = [Fusion(f"{theirs}.weight", (rows, into))]
    table[STREAMS, f"{name}_bias"] = [Fusion(f"{theirs}.bias", (rows,))]
  return table


def spare(config: ParScale) -> frozenset[str]:
  """`Family.spare`."""
  return hf_layout.spare(config.lm, HF)


def check_keys(raw: Mapping[str, Any], config: ParScale, where: str, used: Collection[str]) -> None:
  """`Family.check_keys`."""
  hf_config.check_keys(_network(raw), config.lm, where, used)
