"""Gemma 4: wide heads and keys as values where everything is seen, keys and values that later
layers share, an embedding of each layer, and experts beside a dense MLP."""

import dataclasses
import functools
from typing import Any

from specjax import checks
from specjax.checkpoints import hf_rope
from specjax.checkpoints.hf_gemma import _FOUR_NORMS, _GELU
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
from specjax.models.config import Config, Experts, Kind

SIZE = functools.partial(checks.whole, least=1)
OWN_EMBEDDINGS = {
  "layer_embedding": "model.embed_tokens_per_layer",
  "layer_projection": "model.per_layer_model_projection",
  "layer_norm": "model.per_layer_projection_norm", "own_gate": "per_layer_input_gate",
  "own_out": "per_layer_projection", "own_norm": "post_per_layer_input_norm",
}  # fmt: skip
_NAMES = _FOUR_NORMS | OWN_EMBEDDINGS | {
  "layer_scale": "layer_scalar", "dense_out_norm": "post_feedforward_layernorm_1",
  "experts_norm": "pre_feedforward_layernorm_2",
  "experts_out_norm": "post_feedforward_layernorm_2", "router": "router.proj",
  "router_scale": "router.scale", "expert_scale": "router.per_expert_scale",
  "experts_in": "experts.gate_up_proj", "experts_out": "experts.down_proj",
}  # fmt: skip
_ROPES = {
  LOCAL: {"rope_type": "default", "rope_theta": 10000.0},
  FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}  # fmt: skip
_OF_LAYER = {"head_dim": "head_dim", "num_key_value_heads": "kv_heads"}


def _sizes(found: Found, types: list[str]) -> list[dict[str, int]]:
  """The sizes that each layer has of its own, by `per_layer_config`, or else of those that see
  everything."""
  known, by_layer = found.known, found.raw.get("per_layer_config")
  if by_layer is None:
    own = {"head_dim": found.value("global_head_dim", 512) or 0}
    if known.get("attention_k_eq_v", False):
      own["num_key_value_heads"] = found.value("num_global_key_value_heads") or 0
    every = [own if kind == FULL else {} for kind in types]
  else:
    where = f"{found.where}: per_layer_config"
    if not isinstance(by_layer, dict) or not all(isinstance(x, dict) for x in by_layer.values()):
      checks.refuse(where, by_layer, "an object of an object for some layers")
    listed = {int(key): x for key, x in by_layer.items() if key.isdecimal()}
    if len(listed) < len(by_layer) or any(x.keys() - _OF_LAYER for x in listed.values()):
      checks.refuse(where, by_layer, f"one by numbers of layers, of {' and '.join(_OF_LAYER)}")
    schema = dict.fromkeys(_OF_LAYER, SIZE)
    every = [checks.fields_of(listed.get(i, {}), schema, where) for i in range(len(types))]
  return [{ours: own.get(key, 0) for key, ours in _OF_LAYER.items()} for own in every]


def source(found: Found, types: list[str], layer: int) -> int | None:
  """The layer whose keys and values this one reads: the last of its type that has its own."""
  alone = len(types) - found.known.get("num_kv_shared_layers", 0)
  if layer < alone:
    return None
  before = [i for i in range(max(alone, 0)) if types[i] == types[layer]]
  if not before:
    said = f"fewer than the layers behind the first {types[layer]}"
    checks.refuse(f"{found.where}: num_kv_shared_layers", len(types) - alone, said)
  return before[-1]


def _kinds(found: Found) -> list[Kind]:
  known, layers = found.known, found.known["num_hidden_layers"]
  if not found.raw.get("rope_parameters"):
    found = found._replace(raw={**found.raw, "rope_parameters": _ROPES})
  usual = [FULL if i % 6 == 0 else LOCAL for i in range(1, layers + 1)]
  types = list(known.get("layer_types", usual))
  if len(types) != layers or not set(types) <= {FULL, LOCAL}:
    checks.refuse(f"{found.where}: layer_types", types, f"{layers} of {FULL} and {LOCAL}")
  types[-1] = FULL  # whatever the file says
  of_type = {kind: found.rope(kind) for kind in set(types)}
  if LOCAL in of_type:
    window = known.get("sliding_window", 512)
    of_type[LOCAL] = dataclasses.replace(of_type[LOCAL], window=window)
  kinds = []
  for i, (kind, sizes) in enumerate(zip(types, _sizes(found, types), strict=True)):
    shared = source(found, types, i)
    wide = shared is not None and known.get("use_double_wide_mlp", False)
    usual_sizes = {"head_dim": known["head_dim"], "kv_heads": known["num_key_value_heads"]}
    own: dict[str, Any] = {name: 0 if x == usual_sizes[name] else x for name, x in sizes.items()}
    same = shared is None and kind == FULL and known.get("attention_k_eq_v", False)
    width = 2 * known["intermediate_size"] if wide else 0
    kinds.append(
      dataclasses.replace(of_type[kind], **own, mlp_width=width, keys_as_values=same, source=shared)
    )
  return kinds


def read(found: Found) -> dict[str, Any]:
  """The fields of `Config` that are not sizes."""
  known, own = found.known, found.value("hidden_size_per_layer_input", 256) or 0
  if own and (words := known.get("vocab_size_per_layer_input", 262144)) != known["vocab_size"]:
    checks.refuse(f"{found.where}: vocab_size_per_layer_input", words, str(known["vocab_size"]))
  experts = None
  if known.get("enable_moe_block", False):
    for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
      if key not in known:
        raise ValueError(f"{found.where} lacks {key!r}.")
    experts = Experts(
      known["num_experts"], known["top_k_experts"], known["moe_intermediate_size"],
      beside=True, activation="gelu",
    )  # fmt: skip
  return {
    "norms": "both", "qk_norm": True, "unit_v": True, "attention_scale": 1.0, "activation": "gelu",
    "embedding_scale": known["hidden_size"] ** 0.5, "layer_scale": True, "layer_embedding": own,
    "logit_cap": known.get("final_logit_softcapping"), "experts": experts,
    **alike(_kinds(found)),
  }  # fmt: skip


def _rope(kind: Kind) -> dict[str, Any]:
  return {"rope_type": "default", "rope_theta": kind.rope_theta} | (
    hf_rope.write(kind.rope_scaling) or {}
  )


def _write(c: Config) -> dict[str, Any]:
  kinds, full, local, x = kinds_of(c), first(c, FULL), first(c, LOCAL), c.experts
  raw: dict[str, Any] = {
    "rope_parameters": {FULL: _rope(full), LOCAL: _rope(local)}, "layer_types": types_of(c),
    "sliding_window": local.window or 512, "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": c.logit_cap,
    "global_head_dim": full.head_dim or c.head_dim,
    "num_global_key_value_heads": full.kv_heads or None,
    "attention_k_eq_v": any(kind.keys_as_values for kind in kinds),
    "num_kv_shared_layers": sum(kind.source is not None for kind in kinds),
    "use_double_wide_mlp": any(kind.mlp_width for kind in kinds),
    "hidden_size_per_layer_input": c.layer_embedding, "vocab_size_per_layer_input": c.vocab_size,
    "enable_moe_block": x is not None,
  }  # fmt: skip
  if x is not None:
    raw |= {
      "num_experts": x.count, "top_k_experts": x.chosen, "moe_intermediate_size": x.width,
    }  # fmt: skip
  return raw


def _no_bias(name: str, value: Any) -> bool:
  return checks.boolean(name, value) and checks.refuse(name, value, "false in Gemma 4")


GEMMA4 = {
  "gemma4_text": Row(
    "Gemma4ForCausalLM", _NAMES, read, _write,
    TYPES | {
      **dict.fromkeys(
        ("attention_k_eq_v", "enable_moe_block", "use_double_wide_mlp"), bool
      ),
      **dict.fromkeys(
        ("global_head_dim", "num_global_key_value_heads", "vocab_size_per_layer_input",
         "num_experts", "top_k_experts", "moe_intermediate_size"), SIZE
      ),
      "hidden_size_per_layer_input": checks.whole, "num_kv_shared_layers": checks.whole,
      "final_logit_softcapping": functools.partial(checks.number, above=0),
      "hidden_activation": _GELU, "attention_bias": _no_bias,
    },
    {"head_dim": 256, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
     "max_position_embeddings": 131072},
    idle={"use_bidirectional_attention": ("vision",)},  # of tokens of pictures
    more=("per_layer_config",),
  ),
}  # fmt: skip
