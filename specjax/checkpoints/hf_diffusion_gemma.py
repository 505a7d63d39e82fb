"""DiffusionGemma: Gemma 4's layers, as the decoder of canvases and as the encoder before it."""

from collections.abc import Mapping
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_gemma4, hf_pictures
from specjax.checkpoints.hf_rows import Found, Row
from specjax.models.config import Config

_GEMMA4 = hf_gemma4.GEMMA4["gemma4_text"]
_NAMES = dict(_GEMMA4.names) | {
  "embedding": "model.decoder.embed_tokens", "norm": "model.decoder.norm",
  "layer": "model.decoder.layers.{}", "self_conditioning": "model.decoder.self_conditioning",
  "encoder_scale": "model.encoder.language_model.layers.{}.layer_scalar",
}  # fmt: skip
# What its layers always have of those that Gemma 4's may have, and what they never have.
_FIXED = {
  "attention_k_eq_v": True, "enable_moe_block": True, "use_double_wide_mlp": False,
  "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
}  # fmt: skip
_FOREIGN = (*_FIXED, "vocab_size_per_layer_input")
# Its tower for pictures, and the encoder, whose weights but the scalars are the decoder's.
_SPARE = (
  "model.encoder.vision_tower.*", "model.encoder.embed_vision.*", "model.encoder.language_model.*",
)  # fmt: skip


def _tied(name: str, value: Any) -> bool:
  return checks.boolean(name, value) or checks.refuse(name, value, "true in DiffusionGemma")


def _read(found: Found) -> dict[str, Any]:
  known = {"final_logit_softcapping": 30.0, **found.known, **_FIXED}
  own = found._replace(family="gemma4_text", known=known)
  canvas = found.known.get("canvas_length", 256)
  return {**hf_gemma4.read(own), "causal": False, "canvas": canvas}


def _write(c: Config) -> dict[str, Any]:
  raw = {key: x for key, x in _GEMMA4.write(c).items() if key not in _FOREIGN}
  return raw | {"canvas_length": c.canvas}


DIFFUSION_GEMMA = {
  "diffusion_gemma_text": Row(
    "DiffusionGemmaForBlockDiffusion", _NAMES, _read, _write,
    {key: x for key, x in _GEMMA4.keys.items() if key not in _FOREIGN}
    | {"canvas_length": hf_gemma4.SIZE, "tie_word_embeddings": _tied},
    _GEMMA4.absent, idle=_GEMMA4.idle, more=_GEMMA4.more, spare=_SPARE,
  ),
}  # fmt: skip


def text(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The config.json of both halves as that of one network."""
  return hf_pictures.language_model(raw, where)


def outer(raw: dict[str, Any]) -> dict[str, Any]:
  """A whole config.json of a text network's, which has no tower for pictures."""
  text = {key: x for key, x in raw.items() if key not in ("architectures", "canvas_length")}
  return {
    "model_type": "diffusion_gemma", "architectures": raw["architectures"],
    "canvas_length": raw["canvas_length"], "tie_word_embeddings": True, "text_config": text,
  }  # fmt: skip
