"""A model's config.json, as Hugging Face writes it, to and from our Config."""

from collections.abc import Mapping
from typing import Any

from specjax.models.config import Config, RopeScaling

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "llada", "Dream")
_OF_LLADA = {
  "vocab_size": "embedding_size", "hidden_size": "d_model", "num_hidden_layers": "n_layers",
  "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads",
  "intermediate_size": "mlp_hidden_size", "max_position_embeddings": "max_sequence_length",
  "rope_theta": "rope_theta", "rms_norm_eps": "rms_norm_eps",
  "tie_word_embeddings": "weight_tying", "mlp_bias": "include_bias",
  "attention_bias": "include_qkv_bias", "hidden_act": "activation_type",
}  # fmt: skip
_LLADA_HAS = {
  "block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False,
  "attention_layer_norm": False, "scale_logits": False,
}  # fmt: skip
_LLAMA3 = {
  "low": "low_freq_factor",
  "high": "high_freq_factor",
  "original_length": "original_max_position_embeddings",
}


def _rope(raw: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta`, `rope_scaling`."""
  rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
  theta = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
  kind = rope.get("rope_type", rope.get("type", "default"))
  needed = {"default": [], "linear": ["factor"], "llama3": ["factor", *_LLAMA3.values()]}
  if kind not in needed:
    raise ValueError(f"rope_type={kind!r} in config.json: accepted are {', '.join(needed)}.")
  for key in needed[kind]:
    if key not in rope:
      raise ValueError(f"config.json: the {kind} rope scaling lacks {key!r}.")
  if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
    raise ValueError("partial_rotary_factor in config.json must be 1: whole heads are rotated.")
  if kind == "default":
    return theta, None
  limits = {ours: rope[key] for ours, key in _LLAMA3.items()} if kind == "llama3" else {}
  return theta, RopeScaling(kind, rope["factor"], **limits)


def _window(raw: Mapping[str, Any], family: str) -> int | None:
  """The sliding window of all layers, None where all see everything."""
  if family in ("llama", "llada", "Dream"):
    return None
  window = raw.get("sliding_window", 4096)
  if family == "mistral":
    return window
  if not raw.get("use_sliding_window", False) or window is None:
    return None
  layers = raw["num_hidden_layers"]
  types = raw.get("layer_types")
  if types is None:
    full = min(raw.get("max_window_layers", 28), layers)
  else:
    full = sum(t != "sliding_attention" for t in types)
  if 0 < full < layers:
    raise ValueError(
      f"config.json: {full} of {layers} layers see everything and the others a sliding window; "
      "accepted is one kind in all layers."
    )
  return None if full else window


def from_json(raw: Mapping[str, Any]) -> Config:
  """The Config that config.json describes; keys that are absent mean what transformers says.

  Raises:
    ValueError: an unknown family, a key without which nothing can be built, or a feature that
      `models` does not have.
  """
  family = raw.get("model_type")
  if family not in FAMILIES:
    raise ValueError(f"model_type={family!r} in config.json: accepted are {', '.join(FAMILIES)}.")
  if family == "llada":
    raw = _of_llada(raw)
  for key in (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
  ):  # fmt: skip
    if key not in raw:
      raise ValueError(f"config.json lacks {key!r}.")
  if raw.get("hidden_act", "silu") != "silu":
    raise ValueError(f"hidden_act={raw['hidden_act']!r} in config.json: accepted is silu.")
  if raw.get("mlp_bias", False):
    raise ValueError("mlp_bias=true in config.json: biases in the MLP are not supported.")
  width, heads = raw["hidden_size"], raw["num_attention_heads"]
  theta, scaling = _rope(raw)
  return Config(
    vocab_size=raw["vocab_size"],
    width=width,
    layers=raw["num_hidden_layers"],
    heads=heads,
    kv_heads=raw.get("num_key_value_heads") or heads,
    head_dim=raw.get("head_dim") or width // heads,
    mlp_width=raw["intermediate_size"],
    max_length=raw.get("max_position_embeddings", 2048),
    rope_theta=theta,
    rope_scaling=scaling,
    norm_epsilon=raw.get("rms_norm_eps", 1e-6),
    tied=raw.get("tie_word_embeddings", False),
    qkv_bias=family in ("qwen2", "Dream") or raw.get("attention_bias", False),
    qk_norm=family == "qwen3",
    window=_window(raw, family),
    causal=raw.get("is_causal", family != "Dream"),
  )


def _of_llada(raw: Mapping[str, Any]) -> dict[str, Any]:
  """LLaDA's config.json in the keys of the other families."""
  for key, accepted in _LLADA_HAS.items():
    if raw.get(key, accepted) != accepted:
      raise ValueError(f"{key}={raw[key]!r} in config.json: accepted is {accepted!r}.")
  found = {ours: raw[theirs] for ours, theirs in _OF_LLADA.items() if raw.get(theirs) is not None}
  return {"model_type": "llada", "is_causal": False, **found}


def _family(config: Config) -> tuple[str, str]:
  """(model_type, architecture) of the family that has the config's features."""
  if config.qk_norm and config.qkv_bias:
    raise ValueError("qk_norm=True with qkv_bias=True: no Hugging Face family has both.")
  if config.qk_norm:
    return "qwen3", "Qwen3ForCausalLM"
  if config.qkv_bias:
    return "qwen2", "Qwen2ForCausalLM"
  if config.window is not None:
    return "mistral", "MistralForCausalLM"
  return "llama", "LlamaForCausalLM"


def to_json(config: Config) -> dict[str, Any]:
  """The config.json of a Config, in the layout that old and new transformers read.

  Raises:
    ValueError: no family has these features together.
  """
  family, architecture = _family(config)
  scaling = config.rope_scaling
  rope = None if scaling is None else {"rope_type": scaling.kind, "factor": scaling.factor}
  if rope is not None and rope["rope_type"] == "llama3":
    rope |= {key: getattr(scaling, ours) for ours, key in _LLAMA3.items()}
  raw = {
    "model_type": family,
    "architectures": [architecture],
    "vocab_size": config.vocab_size,
    "hidden_size": config.width,
    "num_hidden_layers": config.layers,
    "num_attention_heads": config.heads,
    "num_key_value_heads": config.kv_heads,
    "head_dim": config.head_dim,
    "intermediate_size": config.mlp_width,
    "hidden_act": "silu",
    "max_position_embeddings": config.max_length,
    "rope_theta": config.rope_theta,
    "rope_scaling": rope,
    "rms_norm_eps": config.norm_epsilon,
    "tie_word_embeddings": config.tied,
  }
  if config.window is not None:
    raw["sliding_window"] = config.window
  if config.window is not None and family != "mistral":
    raw |= {"use_sliding_window": True, "max_window_layers": 0}
  if not config.causal:
    raw["is_causal"] = False
  return raw
