"""Checkpoints that have a tower for pictures: their language model is read."""

import copy
from collections.abc import Mapping
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_layout import Fusion, Layout

# What the language model is where `text_config` does not say so.
TEXTS: Mapping[str, Mapping[str, Any]] = {
  "gemma3": {
    "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 2304,
    "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "tie_word_embeddings": True,
  },
  "gemma4": {"model_type": "gemma4_text", "tie_word_embeddings": True},
  "gemma3n": {
    "model_type": "gemma3n_text", "vocab_size": 262400, "hidden_size": 2048,
    "intermediate_size": 16384, "num_hidden_layers": 35, "num_attention_heads": 8,
    "tie_word_embeddings": True,
  },
  "diffusion_gemma": {"model_type": "diffusion_gemma_text", "tie_word_embeddings": True},
  "llama4": {"model_type": "llama4_text", "tie_word_embeddings": False},
  "mistral3": {"model_type": "mistral", "tie_word_embeddings": False},
  "qwen3_5": {
    "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
  },
  "qwen3_5_moe": {
    "model_type": "qwen3_5_moe_text", "vocab_size": 248320, "hidden_size": 2048,
    "num_hidden_layers": 40, "num_attention_heads": 16,
  },
}  # fmt: skip
_OF_PICTURES = (
  "text_config", "vision_config", "image_token_index", "boi_token_index", "eoi_token_index",
  "image_token_id", "boi_token_id", "eoi_token_id", "mm_tokens_per_image", "projector_hidden_act",
  "video_token_id", "vision_start_token_id", "vision_end_token_id",
  "multimodal_projector_bias", "spatial_merge_size", "vision_feature_layer",
  "audio_config", "boa_token_id", "eoa_token_index", "audio_token_id", "video_token_id",
  "eoa_token_id", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image",
)  # fmt: skip
_PREFIX = "language_model."
# Of these the tower and the language model are in one `model`.
_INSIDE = ("gemma3n", "gemma4", "qwen3_5", "qwen3_5_moe")
_TOWER = {"vision_tower.*", "vision_model.*", "multi_modal_projector.*", "model.visual.*"}
_TOWERS_OF_GEMMA4 = {
  "model.vision_tower.*", "model.audio_tower.*", "model.embed_vision.*", "model.embed_audio.*",
}  # fmt: skip


def language_model(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The config.json of the language model; ValueError where `text_config` is no object.

  Its embedding is the LM head where both parts of the file say so: transformers reads the outer
  one, but not for an LM head that the file has.
  """
  text = raw.get("text_config") or {}
  if not isinstance(text, dict):
    checks.refuse(f"{where}: text_config", text, "an object")
  outer = {key: value for key, value in raw.items() if key not in _OF_PICTURES}
  said = {key: value for key, value in text.items() if value is not None}
  found = outer | {**TEXTS[raw["model_type"]], **said}
  if raw.get("tie_word_embeddings") is False:
    found["tie_word_embeddings"] = False
  return found | {key: None for key in text.keys() - said.keys()}


def _place(family: str, name: str) -> str:
  """A language model's tensor beside a tower."""
  if family not in _INSIDE:
    return _PREFIX + name
  return name.replace("model.", "model." + _PREFIX, 1) if name.startswith("model.") else name


def within(layout: Layout, family: str) -> Layout:
  """The language model's tensors by their names beside a tower, of a file of this `model_type`."""

  def renamed(parts: list[Fusion]) -> list[Fusion]:
    found = copy.copy(parts)  # which may be a stack
    found[:] = [part._replace(name=_place(family, part.name)) for part in parts]
    return found

  return {path: renamed(parts) for path, parts in layout.items()}


def spare(names: frozenset[str], family: str) -> frozenset[str]:
  """What is not read of such a file, given what is not read of the language model's own."""
  towers = _TOWERS_OF_GEMMA4 if family in ("gemma3n", "gemma4") else _TOWER
  return frozenset(towers | {_place(family, name) for name in names})
