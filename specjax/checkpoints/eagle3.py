"""EAGLE-3 heads on disk, as SafeAILab, SpecForge and speculators publish them.

`fc` joins three of the target's layers, `midlayer` is the layer, and `norm` and `lm_head` make its
output logits of the `draft_vocab_size` draft tokens. Draft token i is the target's token
i + `d2t`[i]; `t2d` marks the target's tokens that have a draft token. In the format of speculators
the layer is `layers.0`, and config.json holds that of a Llama as `transformer_layer_config`.

Letters: V vocabulary, W draft vocabulary, L the target's layers.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from specjax import checks, schema
from specjax.base import Params
from specjax.checkpoints import published
from specjax.checkpoints.heads import Loaded
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.drafters import draft_vocabulary
from specjax.drafters.eagle3 import Eagle3Config, hidden_layers_of
from specjax.drafters.eagle3 import eagle3 as build
from specjax.models.config import Config
from specjax.models.transformer import target

_ARCHITECTURES = (
  "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM", "Eagle3Speculator",
  "Eagle3DraftModel",
)  # fmt: skip
_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE-3.1
_SPECULATORS = "speculators_model_type"


def _hidden_layer_ids(name: str, value: Any) -> Any:
  if not isinstance(value, dict):
    checks.refuse(name, value, "an object")
  return schema.fields(value, _IDS, name)


_IDS = {"eagle_aux_hidden_state_layer_ids": tuple[int, ...]}
_SCHEMA = _IDS | {
  "draft_vocab_size": functools.partial(checks.whole, least=1), "attention_bias": bool,
  "specjax_depth": published.COUNT, "specjax_taps": tuple[int, ...],
  "eagle_config": _hidden_layer_ids, "target_hidden_size": published.COUNT,
} | dict.fromkeys(_OPTIONS, bool)  # fmt: skip


def _layout(c: Eagle3Config, network: Config, words: int, name: str) -> published.Layout:
  """The parameters; `name` is the layer's."""
  E, inputs = network.width, len(hidden_layers_of(network.layers, c))
  layer = dataclasses.replace(published.layer_of(network, c.mlp_width), qkv_bias=c.attention_bias)
  layout: published.Layout = {
    ("fc",): [Fusion("fc.weight", (E, inputs * E))],
    ("input_norm", "weight"): [Fusion(f"{name}.input_layernorm.weight", (E,))],
    ("hidden_norm", "weight"): [Fusion(f"{name}.hidden_norm.weight", (E,))],
    ("norm", "weight"): [Fusion("norm.weight", (E,))],
    ("lm_head",): [Fusion("lm_head.weight", (words, E))],
  }
  if c.norm_before_fc:
    layout["joint_norm", "weight"] = [Fusion("input_norm.weight", (inputs * E,))]
  for i in range(inputs if c.fc_norm else 0):
    layout[f"fc_norm_{i}", "weight"] = [Fusion(f"fc_norm.{i}.weight", (E,))]
  if c.own_embedding:
    layout["embedding",] = [Fusion(published.EMBEDDING, (network.vocab_size, E))]
  return layout | block(layer, ("layers", "layer_0"), name, inputs=2 * E, norm=False)


def _published_layers(model: Config) -> tuple[int, ...]:
  return 2, model.layers // 2, model.layers - 3


def _hidden_layers(raw: Mapping[str, Any], model: Config) -> tuple[int, ...]:
  """`Eagle3Config.hidden_layers`: `specjax_taps`, which `encode` writes, or the published layers.

  `eagle_aux_hidden_state_layer_ids` count the outputs of layers inside `eagle_config`, which
  SpecForge and SGLang write, and else the inputs, as speculators and vLLM do.
  """
  usual, nested = _published_layers(model), raw.get("eagle_config") or {}
  found = raw.get("eagle_aux_hidden_state_layer_ids", usual)
  if ids := nested.get("eagle_aux_hidden_state_layer_ids"):
    found = tuple(i + 1 for i in ids)
  hidden_layers = raw.get("specjax_taps", found)
  return () if hidden_layers == hidden_layers_of(model.layers, Eagle3Config()) else hidden_layers


def _vocabulary(tensors: published.Tensors, words: int, size: int, path) -> np.ndarray | None:
  """The target's ids i32[W] of the draft tokens, from d2t [W] and t2d [V]; None where W is V."""
  if words == size:
    if tensors.get("d2t", np.zeros(1)).any() or not tensors.get("t2d", np.ones(1)).all():
      raise ValueError(f"{path}: d2t and t2d leave tokens out, draft_vocab_size={words} does not.")
    return None
  if tensors["d2t"].dtype.kind != "i" or tensors["t2d"].dtype.kind not in "bui":
    raise ValueError(f"{path}: d2t must hold numbers, and t2d truth values.")
  ids = np.arange(words) + tensors["d2t"]
  if not np.array_equal(np.sort(ids), np.flatnonzero(tensors["t2d"])):
    raise ValueError(f"{path}: d2t and t2d name different tokens.")
  return ids.astype(np.int32)


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> Loaded:
  """A head for the target `model`; the depth is found as in `eagle`.

  `num_hidden_layers` is not read: the head for Vicuna 13B says 40 and holds one layer, as all
  others do.
  """
  published.check_architecture(raw, _ARCHITECTURES)
  if raw.get(_SPECULATORS, "eagle3") != "eagle3":
    raise ValueError(f"{_SPECULATORS}={raw[_SPECULATORS]!r} in config.json: accepted is 'eagle3'.")
  if isinstance(inner := raw.get("transformer_layer_config"), dict):
    raw = inner | {k: v for k, v in raw.items() if k not in inner}
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json", ["draft_vocab_size"])
  if own.get("target_hidden_size", model.width) != model.width:
    raise ValueError(f"target_hidden_size={own['target_hidden_size']} in config.json: accepted is "
                     f"the target's width, {model.width}.")  # fmt: skip
  network, mlp_width = published.network_of(raw, model, model.qkv_bias)
  path, tensors = published.read(directory, published.FILES)
  config = Eagle3Config(
    own.get("specjax_depth", published.TREE.depth), _hidden_layers(own, model), mlp_width,
    own.get("attention_bias", False), own_embedding=published.EMBEDDING in tensors,
    **{name: own.get(name, False) for name in _OPTIONS},
  )  # fmt: skip
  name = "layers.0" if any(x.startswith("layers.0.") for x in tensors) else "midlayer"
  words, size = own["draft_vocab_size"], model.vocab_size
  tables: dict[str, tuple[int, ...]] = {"d2t": (words,), "t2d": (size,)}
  params = published.gather(
    tensors, _layout(config, network, words, name), path, dtype,
    unused=tables if words == size else {}, others={} if words == size else tables,
  )  # fmt: skip
  vocabulary = draft_vocabulary.collection(_vocabulary(tensors, words, size, path))
  head, tree = build(target(network), config), None if "specjax_depth" in own else published.TREE
  return Loaded(head, {"params": params} | vocabulary, (), None, config, network, tree)


def encode(loaded: Loaded, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its draft vocabulary has all tokens, not in the target's order."""
  config, network = loaded.config, loaded.network
  size, vocabulary = network.vocab_size, draft_vocabulary.ids(loaded.params)
  ids = np.arange(size) if vocabulary is None else np.asarray(vocabulary, np.int64)
  offsets = ids - np.arange(len(ids))
  if len(ids) == size and offsets.any():
    raise ValueError("vocabulary reorders all tokens: the format eagle3 keeps their order.")
  tensors = scatter(loaded.params, _layout(config, network, len(ids), "midlayer"), dtype)
  if len(ids) < size:
    tensors |= {"d2t": offsets, "t2d": np.isin(np.arange(size), ids)}
  raw = published.layer_json(network, config, dtype)
  raw |= {"architectures": list(_ARCHITECTURES[:1]), "attention_bias": config.attention_bias,
          "draft_vocab_size": len(ids)}  # fmt: skip
  raw |= {name: True for name in _OPTIONS if getattr(config, name)}
  hidden_layers = hidden_layers_of(network.layers, config)
  if hidden_layers != _published_layers(network):
    raw["specjax_taps"] = list(hidden_layers)
  return published.FILES[0], tensors, raw
