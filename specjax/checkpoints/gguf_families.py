"""The architectures of GGUF files: the keys of each, what a config.json would say of it, and what
llama.cpp takes for silence."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from specjax import checks

_SIZE = functools.partial(checks.whole, least=1)
_NUMBER = functools.partial(checks.number, above=0)
Keys = dict[str, tuple[Any, str]]
"""What is accepted of keys after the architecture's name, and their names in a config.json."""


class Architecture(NamedTuple):
  """One of them.

  Attributes:
    model_type: of the config.json.
    says: what else it says.
    keys: beside those that all have, see `Keys`.
    silent: from what is known to what follows, or holds where a file is silent.
    pairs: whether rows of q and k lie in rotary pairs (2i, 2i + 1).
    epsilon: a config.json's name of the norms' epsilon, see `EPSILON`.
  """

  model_type: str
  says: Mapping[str, Any] = {}
  keys: Mapping[str, tuple[Any, str]] = {}
  silent: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda raw: {}
  pairs: bool = False
  epsilon: str = "rms_norm_eps"


EPSILON = {
  "rms_norm_eps": "attention.layer_norm_rms_epsilon",
  "layer_norm_eps": "attention.layer_norm_epsilon",
}  # fmt: skip
_WINDOW: Keys = {"attention.sliding_window": (_SIZE, "sliding_window")}
_CAPS: Keys = {
  "attn_logit_softcapping": (_NUMBER, "attn_logit_softcapping"),
  "final_logit_softcapping": (_NUMBER, "final_logit_softcapping"),
}
_EXPERTS: Keys = {
  "expert_count": (_SIZE, "num_experts"), "expert_used_count": (_SIZE, "num_experts_per_tok"),
}  # fmt: skip
_WIDTH: Keys = {"expert_feed_forward_length": (_SIZE, "moe_intermediate_size")}
_SHARED: Keys = {
  "expert_shared_feed_forward_length": (_SIZE, "shared_expert_intermediate_size"),
}  # fmt: skip
_SCALES: Keys = {
  "embedding_scale": (_NUMBER, "embedding_multiplier"), "logit_scale": (_NUMBER, "logits_scaling"),
  "residual_scale": (_NUMBER, "residual_multiplier"),
  "attention.scale": (_NUMBER, "attention_multiplier"),
}  # fmt: skip


def _head(raw: Mapping[str, Any]) -> int:
  return raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])


def _mistral(raw: Mapping[str, Any]) -> dict[str, Any]:
  return {"model_type": "mistral"} if "sliding_window" in raw else {}


def _usual(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Where a family's config.json has other defaults."""
  heads = raw["num_attention_heads"]
  return {"head_dim": _head(raw), "rope_theta": 1e4, "num_key_value_heads": heads} | dict(raw)


def _scaled_by_width(raw: Mapping[str, Any], layers: int) -> dict[str, Any]:
  """Gemma's queries are scaled by a head's width, but for a model that this number of layers
  tells."""
  width = raw["hidden_size"] // raw["num_attention_heads"]
  scalar = width if raw["num_hidden_layers"] == layers else _head(raw)
  return _usual(raw) | {"query_pre_attn_scalar": scalar}


def _gemma3(raw: Mapping[str, Any]) -> dict[str, Any]:
  types = {} if "sliding_window" in raw else {"layer_types": ["full_attention"]}
  return _scaled_by_width(raw, 62) | {k: x * raw["num_hidden_layers"] for k, x in types.items()}


def _in_part(raw: Mapping[str, Any]) -> dict[str, Any]:
  return {"partial_rotary_factor": 1.0} | _usual(raw)


def _windows(raw: Mapping[str, Any]) -> dict[str, Any]:
  return {"sliding_window": None} | _usual(raw)


def _olmo(raw: Mapping[str, Any]) -> dict[str, Any]:
  return _usual(raw) | ({"model_type": "olmo3"} if "sliding_window" in raw else {})


ARCHITECTURES: dict[str, Architecture] = {
  "llama": Architecture("llama", {}, _WINDOW, _mistral, pairs=True),
  "qwen2": Architecture("qwen2"),
  "qwen3": Architecture("qwen3"),
  "llada": Architecture("llama", {"is_causal": False}, pairs=True),
  "dream": Architecture("Dream"),
  "gemma": Architecture("gemma", {}, {}, _usual),
  "gemma2": Architecture(
    "gemma2", {}, _WINDOW | _CAPS, functools.partial(_scaled_by_width, layers=46)
  ),
  "gemma3": Architecture("gemma3_text", {}, _WINDOW, _gemma3),
  "phi3": Architecture("phi3", {}, _WINDOW, _in_part),
  "olmo2": Architecture("olmo2", {}, _WINDOW, _olmo),
  "olmoe": Architecture("olmoe", {"norm_topk_prob": False}, _EXPERTS, _usual),
  "glm4": Architecture("glm4", {}, {}, _in_part),
  "granite": Architecture("granite", {}, _SCALES, _usual, pairs=True),
  "smollm3": Architecture("smollm3", {}, {}, _usual, pairs=True),
  "cohere2": Architecture(
    "cohere2", {}, _WINDOW | {"logit_scale": (_NUMBER, "logit_scale")}, _windows,
    epsilon="layer_norm_eps",
  ),
  "exaone4": Architecture("exaone4", {}, _WINDOW, _windows),
  "seed_oss": Architecture("seed_oss", {}, {}, _usual),
  "ernie4_5": Architecture("ernie4_5", {}, {}, _usual),
  "qwen2moe": Architecture(
    "qwen2_moe", {"norm_topk_prob": False}, _EXPERTS | _WIDTH | _SHARED, _usual
  ),
  "qwen3moe": Architecture("qwen3_moe", {"norm_topk_prob": True}, _EXPERTS | _WIDTH, _usual),
}  # fmt: skip
"""By their names in files."""
