"""A model's config.json, as Hugging Face writes it, to and from our Config."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from specjax import checks
from specjax.checkpoints import harmless, hf_experts, hf_rope
from specjax.models.config import Config

FAMILIES = (
  "llama", "mistral", "qwen2", "qwen3", "mimo", "llada", "Dream", "sdar", "Fast_dLLM_Qwen",
  "wedlm", *hf_experts.KEYS,
)  # fmt: skip
# Where a family says how long the blocks are that it is causal over, and the published default.
_BLOCKS = {
  "sdar": ("block_size", 4), "sdar_moe": ("block_size", 4), "Fast_dLLM_Qwen": ("bd_size", 32),
  "llada2_moe": ("specjax_block_length", 32),
}  # fmt: skip
# Their programs know no sliding window.
_NO_WINDOW = ("llama", "llada", "Dream", "lladamoe", "llada2_moe", "specjax_blockffn")
_BOTH_SIDES = ("Dream", "lladamoe", "wedlm", *_BLOCKS)
_NORMED = ("qwen3", "sdar", "qwen3_moe", "sdar_moe", "lladamoe", "llada2_moe")
_BIASED = ("qwen2", "mimo", "Dream", "Fast_dLLM_Qwen")
# What the programs of these take for absent keys, where it is not what Llama's takes.
_ABSENT: dict[str, dict[str, Any]] = {
  "mixtral": {
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
  },
  "wedlm": {"attention_bias": True},
  "lladamoe": {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
  "llada2_moe": {
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 16384,
  },
}
_SIZE = functools.partial(checks.whole, least=1)
_POSITIVE = functools.partial(checks.number, above=0)
_LAYERS = functools.partial(checks.whole, least=1, most=1024)
_SILU = functools.partial(checks.choice, accepted=["silu"])


def _no_bias(name: str, value: Any) -> bool:
  return checks.boolean(name, value) and checks.refuse(name, value, "false: MLPs have no biases")


NEEDED = (
  "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
)  # fmt: skip
SCHEMA = {
  "vocab_size": _SIZE, "hidden_size": _SIZE, "num_hidden_layers": _LAYERS,
  "num_attention_heads": _SIZE, "num_key_value_heads": _SIZE, "head_dim": _SIZE,
  "intermediate_size": _SIZE, "max_position_embeddings": _SIZE, "rope_theta": _POSITIVE,
  "rms_norm_eps": _POSITIVE, "tie_word_embeddings": bool, "mlp_bias": _no_bias,
  "attention_bias": bool, "hidden_act": _SILU, "is_causal": bool, "specjax_any_order": bool,
  "specjax_uniform": bool, "qk_norm": bool, "partial_rotary_factor": float,
  "use_sliding_window": bool, "sliding_window": _SIZE, "max_window_layers": int,
  "layer_types": tuple[str, ...],
}  # fmt: skip
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


def _checked(raw: Mapping[str, Any], family: str, where: str) -> dict[str, Any]:
  """The values of config.json by the keys that most families use; absent ones are left out."""
  if family == "lladamoe":  # its dense layers, if there are any, have the width of this key
    width = raw.get("dense_intermediate_size") or raw.get("expert_intermediate_size")
    raw = {**raw, "intermediate_size": width}
  if family != "llada":
    return {**_ABSENT.get(family, {}), **checks.fields_of(raw, SCHEMA, where, NEEDED)}
  for key, accepted in _LLADA_HAS.items():
    if raw.get(key, accepted) != accepted:
      checks.refuse(f"{where}: {key}", raw[key], repr(accepted))
  theirs = {_OF_LLADA[ours]: SCHEMA[ours] for ours in _OF_LLADA}
  found = checks.fields_of(raw, theirs, where, [_OF_LLADA[ours] for ours in NEEDED])
  values = {ours: found[key] for ours, key in _OF_LLADA.items() if key in found}
  return {"is_causal": False, **values}


def _block_length(raw: Mapping[str, Any], family: str, where: str) -> int | None:
  key, default = _BLOCKS.get(family, ("specjax_block_length", None))
  return checks.fields_of(raw, {key: _SIZE}, where).get(key, default)


def _window(
  raw: Mapping[str, Any], known: Mapping[str, Any], family: str, where: str
) -> int | None:
  """The sliding window of all layers, or None where every layer sees everything."""
  if family in _NO_WINDOW:
    return None
  if family == "mixtral":
    return known.get("sliding_window")
  # In Mistral's config.json null means no window, and an absent key a window of 4096.
  window = known.get("sliding_window", None if "sliding_window" in raw else 4096)
  if family == "mistral":
    return window
  if not known.get("use_sliding_window", False) or window is None:
    return None
  if family in ("qwen3_moe", "sdar_moe"):
    return window
  layers, types = known["num_hidden_layers"], known.get("layer_types")
  if types is None:
    full = min(known.get("max_window_layers", 28), layers)
  else:
    full = sum(t != "sliding_attention" for t in types)
  if 0 < full < layers:
    raise ValueError(
      f"{where}: {full} of {layers} layers see everything and the others a sliding window; "
      "all layers must be of one kind."
    )
  return None if full else window


def family_of(raw: Mapping[str, Any]) -> str:
  """The family of a config.json: its model_type, but for LLaDA-MoE, which says that it is LLaDA."""
  family = raw.get("model_type")
  return "lladamoe" if family == "llada" and "num_experts" in raw else str(family)


def from_json(raw: Mapping[str, Any], where: str = "config.json") -> Config:
  """The Config that config.json describes; errors call the file `where`.

  Absent keys mean what they mean to transformers.

  Raises:
    ValueError: an unknown family, an absent key that is needed, a value of a wrong type or range,
      or a feature that `models` does not have.
  """
  checks.choice(f"{where}: model_type", raw.get("model_type"), FAMILIES)
  family = family_of(raw)
  known = _checked(raw, family, where)
  width, heads = known["hidden_size"], known["num_attention_heads"]
  theta, scaling, share = hf_rope.read(raw, known, family, where)
  length = known.get("max_position_embeddings", 2048)
  if scaling is not None and scaling.kind == "yarn":  # files differ in which length they give
    length = max(length, int(scaling.factor * scaling.original_length))
  window = _window(raw, known, family, where)
  layers, head_dim = known["num_hidden_layers"], known.get("head_dim", width // heads)
  try:
    return Config(
      vocab_size=known["vocab_size"],
      width=width,
      layers=layers,
      heads=heads,
      kv_heads=known.get("num_key_value_heads", heads),
      head_dim=head_dim,
      mlp_width=known["intermediate_size"],
      max_length=length,
      rope_theta=theta,
      rope_scaling=scaling,
      norm_epsilon=known.get("rms_norm_eps", 1e-6),
      tied=known.get("tie_word_embeddings", False),
      qkv_bias=family in _BIASED or known.get("attention_bias", False),
      qk_norm=family in _NORMED or (family == "wedlm" and known.get("qk_norm", False)),
      window=window,
      causal=known.get("is_causal", family not in _BOTH_SIDES),
      block_length=_block_length(raw, family, where),
      any_order=known.get("specjax_any_order", False),
      uniform=known.get("specjax_uniform", False),
      masks_last=family == "wedlm",
      rotary_dim=None if share == 1 else int(head_dim * share),
      experts=hf_experts.read(raw, family, layers, where),
    )
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None


def check_keys(raw: Mapping[str, Any], config: Config, where: str, used: Collection[str]) -> None:
  """Raises ValueError for a key of a model's config.json that could change what the model says and
  that neither `from_json`, which has made the config, nor the caller reads (`used`)."""
  family = family_of(raw)
  own = set(_LLADA_HAS) | set(_OF_LLADA.values()) if family == "llada" else set(SCHEMA)
  own |= {"rope_scaling", "rope_parameters", "original_max_position_embeddings", *used}
  own |= hf_experts.keys(family) | {_BLOCKS.get(family, ("specjax_block_length",))[0]}
  if family == "lladamoe":
    own |= {"dense_intermediate_size"}
  if family == "mimo":  # of the layer that `mtp` reads
    own |= {"num_nextn_predict_layers"}
  seen = "full_attention" if config.window is None else "sliding_attention"
  # Second places for what the config has: they may say the same.
  same: dict[str, Any] = {
    "layer_types": ([seen] * config.layers,),
    "rotary_dim": (config.rotary_dim or config.head_dim,),
  }
  if family in (*_NO_WINDOW, "mistral", "mixtral"):  # they do not read the switch
    same |= {"use_sliding_window": (config.window is not None,)}
    same |= {"max_window_layers": ... if config.window is None else (0,)}
    if family in _NO_WINDOW:
      same |= {"sliding_window": ... if raw.get("use_sliding_window") is False else (None,)}
    own -= same.keys()
  own -= {"layer_types"}
  harmless.known_keys(
    raw, where, own, {**harmless.CONFIG, **same, **harmless.FAMILIES.get(family, {})}
  )


def _family(config: Config, mask: bool, shift: bool) -> tuple[str, str]:
  """(model_type, architecture) of the family that has these features."""
  if config.masks_last:
    if config.experts is not None or config.rotary_dim is not None:
      raise ValueError("masks_last=True: no Hugging Face family with experts or rotary_dim has it.")
    return "wedlm", "WeDLMForCausalLM"
  if config.qk_norm and config.qkv_bias:
    raise ValueError("qk_norm=True with qkv_bias=True: no Hugging Face family has both.")
  if config.experts is not None:
    return hf_experts.family_of(config, mask, shift)
  if config.rotary_dim is not None:
    raise ValueError(
      f"rotary_dim={config.rotary_dim}: no Hugging Face family without experts has "
      "heads that turn in part."
    )
  # What no published denoiser has: such a model is written as the causal family of its features.
  own = config.causal or config.window is not None or config.any_order
  # Programs for these two take the size of a head from the width.
  whole = config.heads * config.head_dim == config.width
  if mask and not own:
    blocks, bias, norm = config.block_length is not None, config.qkv_bias, config.qk_norm
    if blocks and norm and not shift:
      return "sdar", "SDARForCausalLM"
    if blocks and bias and shift:
      return "Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM"
    if whole and not blocks and bias and shift:
      return "Dream", "DreamModel"
    if whole and not (blocks or bias or norm or shift) and config.rope_scaling is None:
      return "llada", "LLaDAModelLM"
  if config.qk_norm:
    return "qwen3", "Qwen3ForCausalLM"
  if config.qkv_bias:
    return "qwen2", "Qwen2ForCausalLM"
  if config.window is not None:
    return "mistral", "MistralForCausalLM"
  return "llama", "LlamaForCausalLM"


def to_json(config: Config, *, mask: bool = False, shift: bool = False) -> dict[str, Any]:
  """The config.json of a Config, in the layout that old and new transformers read.

  With a mask token it is that of the published denoiser of these features, where there is one:
  LLaDA, Dream, SDAR, Fast-dLLM v2, WeDLM, LLaDA-MoE, SDAR-MoE or LLaDA2.

  Args:
    mask: whether the model has a mask token.
    shift: whether the state before a masked token predicts it.

  It raises ValueError where no family has these features together.
  """
  if unlike := config.unlike_llama:
    said = ", ".join(f"{name}={value!r}" for name, value in unlike.items())
    raise ValueError(f"{said}: no family with layers like Llama's has this.")
  family, architecture = _family(config, mask, shift)
  raw = {
    "model_type": family, "architectures": [architecture], "vocab_size": config.vocab_size,
    "hidden_size": config.width, "num_hidden_layers": config.layers,
    "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads,
    "head_dim": config.head_dim, "intermediate_size": config.mlp_width, "hidden_act": "silu",
    "max_position_embeddings": config.max_length, "rope_theta": config.rope_theta,
    "rope_scaling": hf_rope.write(config.rope_scaling), "rms_norm_eps": config.norm_epsilon,
    "tie_word_embeddings": config.tied,
  }  # fmt: skip
  if family == "llada":
    return _to_llada(raw)
  if config.window is not None:
    raw["sliding_window"] = config.window
    if family not in ("mistral", "mixtral"):
      raw |= {"use_sliding_window": True, "max_window_layers": 0}
  if family == "wedlm":
    raw |= {"attention_bias": config.qkv_bias, "qk_norm": config.qk_norm}
  if family in _BLOCKS:
    raw[_BLOCKS[family][0]] = config.block_length
  elif config.block_length is not None:
    raw["specjax_block_length"] = config.block_length
  if config.experts is not None:
    raw |= hf_experts.write(config, family)
  if family == "lladamoe":
    raw["model_type"] = "llada"
  if not config.causal and family not in _BOTH_SIDES:
    raw["is_causal"] = False
  raw |= {f"specjax_{x}": True for x in ("any_order", "uniform") if getattr(config, x)}
  return raw


def _to_llada(raw: Mapping[str, Any]) -> dict[str, Any]:
  """The same by LLaDA's keys, with all those whose default in its program is another network."""
  theirs = {key: raw[ours] for ours, key in _OF_LLADA.items() if ours in raw}
  fixed = {"vocab_size": raw["vocab_size"], "include_bias": False, "include_qkv_bias": False}
  kept = {key: raw[key] for key in ("model_type", "architectures")}
  return {**kept, **theirs, **fixed, **_LLADA_HAS, "rope_full_precision": True}
