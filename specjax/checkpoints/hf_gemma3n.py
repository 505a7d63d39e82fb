"""Gemma 3n: four streams that layers update by turns (AltUp), a path of low rank beside attention
(LAuReL), an embedding of each layer, and gates of which few are not 0."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints.hf_gemma import _FOUR_NORMS, _GELU
from specjax.checkpoints.hf_gemma4 import OWN_EMBEDDINGS, source
from specjax.checkpoints.hf_rows import (
  FULL,
  LOCAL,
  TYPES,
  Found,
  Row,
  alike,
  first,
  kinds_of,
  types_of,
)
from specjax.models.config import Config, Kind, Streams

_SIZE = functools.partial(checks.whole, least=1)
_NAMES = _FOUR_NORMS | OWN_EMBEDDINGS | {
  "streams_apart": "model.altup_projections.{}",
  "streams_together": "model.altup_unembed_projections.{}", "altup_router": "altup.modality_router",
  "altup_norm": "altup.router_norm", "altup_before": "altup.prediction_coefs",
  "altup_behind": "altup.correction_coefs", "altup_scale": "altup.correct_output_scale",
  "laurel_down": "laurel.linear_left", "laurel_up": "laurel.linear_right",
  "laurel_norm": "laurel.post_laurel_norm",
}  # fmt: skip


def _widths(name: str, value: Any) -> Any:
  """One width of all MLPs, or one of each."""
  return tuple(_SIZE(name, x) for x in value) if isinstance(value, list) else _SIZE(name, value)


def _each(found: Found, key: str, usual: Any) -> list[Any]:
  """What each layer has by a key."""
  layers, listed = found.known["num_hidden_layers"], found.known.get(key, usual)
  listed = list(listed) if isinstance(listed, tuple | list) else [listed] * layers
  if len(listed) != layers:
    checks.refuse(f"{found.where}: {key}", listed, f"{layers} numbers, one a layer")
  return listed


def _kinds(found: Found, widths: list[int]) -> list[Kind]:
  known, layers = found.known, found.known["num_hidden_layers"]
  types = _each(found, "layer_types", [LOCAL if i % 5 else FULL for i in range(1, layers + 1)])
  if not set(types) <= {FULL, LOCAL}:
    checks.refuse(f"{found.where}: layer_types", types, f"{layers} of {FULL} and {LOCAL}")
  local = found.rope(LOCAL, known.get("rope_local_base_freq", 1e4))
  of_type = {
    FULL: found.rope(FULL, known.get("rope_theta", 1e6)),
    LOCAL: dataclasses.replace(local, window=known.get("sliding_window", 512)),
  }
  sparse = 10 if layers > 10 else 0
  shares = _each(found, "activation_sparsity_pattern", [0.95 * (i < sparse) for i in range(layers)])
  for share in shares:
    checks.number(f"{found.where}: activation_sparsity_pattern", share, least=0, below=1)
  return [
    dataclasses.replace(
      of_type[types[i]], source=source(found, types, i), sparsity=float(shares[i]),
      mlp_width=0 if widths[i] == widths[0] else widths[i],
    )
    for i in range(layers)
  ]  # fmt: skip


def _read(found: Found) -> dict[str, Any]:
  known = found.known
  widths = _each(found, "intermediate_size", None)
  words = known.get("vocab_size_per_layer_input", 262144)
  return {
    "norms": "both", "qk_norm": True, "unit_v": True, "attention_scale": 1.0, "activation": "gelu",
    "embedding_scale": known["hidden_size"] ** 0.5, "mlp_width": widths[0],
    "layer_embedding": known.get("hidden_size_per_layer_input", 256),
    "layer_vocab": None if words >= known["vocab_size"] else words,
    "logit_cap": found.value("final_logit_softcapping", 30.0),
    "streams": Streams(known.get("altup_num_inputs", 4), known.get("laurel_rank", 64)),
    **alike(_kinds(found, widths)),
  }  # fmt: skip


def _write(c: Config) -> dict[str, Any]:
  own, kinds = c.streams, kinds_of(c)
  if own is None:
    return {"altup_num_inputs": None}
  full, local = first(c, FULL), first(c, LOCAL)
  return {
    "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "layer_types": types_of(c),
    "sliding_window": local.window or 512, "rope_local_base_freq": local.rope_theta,
    "rope_theta": full.rope_theta, "final_logit_softcapping": c.logit_cap,
    "num_kv_shared_layers": sum(kind.source is not None for kind in kinds),
    "intermediate_size": [kind.mlp_width or c.mlp_width for kind in kinds],
    "activation_sparsity_pattern": [kind.sparsity for kind in kinds],
    "hidden_size_per_layer_input": c.layer_embedding,
    "vocab_size_per_layer_input": c.layer_vocab or c.vocab_size,
    "altup_num_inputs": own.count, "laurel_rank": own.rank,
  }  # fmt: skip


GEMMA3N = {
  "gemma3n_text": Row(
    "Gemma3nForCausalLM", _NAMES, _read, _write,
    TYPES | {
      **dict.fromkeys(
        ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "laurel_rank"), _SIZE
      ),
      "altup_num_inputs": functools.partial(checks.whole, least=2),
      "num_kv_shared_layers": checks.whole, "activation_sparsity_pattern": tuple[float, ...],
      "intermediate_size": _widths, "hidden_activation": _GELU,
      **dict.fromkeys(
        ("final_logit_softcapping", "rope_local_base_freq"),
        functools.partial(checks.number, above=0),
      ),
    },
    {"head_dim": 256, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
     "max_position_embeddings": 32768, "num_kv_shared_layers": 15},
    # The clip is of training alone.
    idle={"altup_active_idx": (0,), "altup_correct_scale": (True,), "altup_coef_clip": ...},
    spare=("model.layers.*.self_attn.[kv]_*",),  # of layers that read another's
  ),
}  # fmt: skip
