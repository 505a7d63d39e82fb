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
)  # fmt: skip
_INSIDE = ("qwen3_5", "qwen3_5_moe")  # they have the tower and the language model in one `model`
_TOWER = {"vision_tower.*", "multi_modal_projector.*", "model.visual.*"}


def _beside(name: str, model_type: str) -> str:
  """The name of a tensor of the language model beside a tower."""
  if model_type not in _INSIDE:
    return f"language_model.{name}"
  return f"model.language_model.{name[6:]}" if name.startswith("model.") else name


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


def within(layout: Layout, model_type: str) -> Layout:
  """The language model's tensors by their names beside a tower."""

  def renamed(parts: list[Fusion]) -> list[Fusion]:
    found = copy.copy(parts)  # which may be a stack
    found[:] = [part._replace(name=_beside(part.name, model_type)) for part in parts]
    return found

  return {path: renamed(parts) for path, parts in layout.items()}


def spare(names: frozenset[str], model_type: str) -> frozenset[str]:
  """What is not read of such a file, given what is not read of the language model's own."""
  return frozenset(_TOWER | {_beside(name, model_type) for name in names})
