"""EAGLE-3 heads on disk, as SafeAILab and SpecForge publish them.

`fc` joins three of the target's layers, `midlayer` is the layer, and `norm` and `lm_head` make its
output logits of the `draft_vocab_size` draft tokens. Draft token i is the target's token
i + `d2t`[i]; `t2d` marks the target's tokens that have a draft token.

Letters: V vocabulary, W draft vocabulary, L the target's layers.
"""

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

_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")
_OTHER_NETWORKS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def _hidden_layer_ids(name: str, value: Any) -> Any:
  if not isinstance(value, dict):
    checks.refuse(name, value, "an object")
  return schema.fields(value, _IDS, name)


_IDS = {"eagle_aux_hidden_state_layer_ids": tuple[int, ...]}
_SCHEMA = _IDS | {
  "draft_vocab_size": functools.partial(checks.whole, least=1), "attention_bias": bool,
  "specjax_depth": published.COUNT, "specjax_taps": tuple[int, ...],
  "eagle_config": _hidden_layer_ids,
}  # fmt: skip


def _layout(c: Eagle3Config, network: Config, words: int) -> published.Layout:
  E, layer = network.width, published.layer_of(network, c.mlp_width)
  return {
    ("fc",): [Fusion("fc.weight", (E, len(hidden_layers_of(network.layers, c)) * E))],
    ("input_norm", "weight"): [Fusion("midlayer.input_layernorm.weight", (E,))],
    ("hidden_norm", "weight"): [Fusion("midlayer.hidden_norm.weight", (E,))],
    ("norm", "weight"): [Fusion("norm.weight", (E,))],
    ("lm_head",): [Fusion("lm_head.weight", (words, E))],
  } | block(layer, ("layers", "layer_0"), "midlayer", inputs=2 * E, norm=False)


def _published_layers(model: Config) -> tuple[int, ...]:
  return 2, model.layers // 2, model.layers - 3


def _hidden_layers(raw: Mapping[str, Any], model: Config) -> tuple[int, ...]:
  """`Eagle3Config.hidden_layers`: `specjax_taps`, which `encode` writes, or the published layers.

  Engines count `eagle_aux_hidden_state_layer_ids` from the inputs or from the outputs of layers, so
  only ids that mean the published layers are accepted.
  """
  ids = (raw.get("eagle_config") or raw).get("eagle_aux_hidden_state_layer_ids")
  usual = _published_layers(model)
  if ids is not None and ids not in (usual, tuple(i - 1 for i in usual)):
    raise ValueError(f"eagle_aux_hidden_state_layer_ids={list(ids)} in config.json: accepted are "
                     f"the published layers, {list(usual)}.")  # fmt: skip
  hidden_layers = raw.get("specjax_taps", usual)
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
  """A head for the target `model`.

  The target's embedding and the depth are treated as in `eagle`. `num_hidden_layers` is not read:
  the head for Vicuna 13B says 40 and holds one layer, as all others do.
  """
  published.check_architecture(raw, _ARCHITECTURES)
  for key in _OTHER_NETWORKS:
    if raw.get(key):
      raise ValueError(f"{key}={raw[key]} in config.json: accepted is false.")
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json", ["draft_vocab_size"])
  network, mlp_width = published.network_of(raw, model, own.get("attention_bias", False))
  depth = own.get("specjax_depth", published.DEPTH)
  config = Eagle3Config(depth, _hidden_layers(own, model), mlp_width)
  words, size = own["draft_vocab_size"], model.vocab_size
  tables: dict[str, tuple[int, ...]] = {"d2t": (words,), "t2d": (size,)}
  unused: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (size, model.width)}
  path, tensors = published.read(directory, published.FILES)
  params = published.gather(
    tensors, _layout(config, network, words), path, dtype,
    unused=unused | tables if words == size else unused, others={} if words == size else tables,
  )  # fmt: skip
  vocabulary = draft_vocabulary.collection(_vocabulary(tensors, words, size, path))
  return Loaded(
    build(target(network), config), {"params": params} | vocabulary, (), None, config, network
  )


def encode(loaded: Loaded, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its draft vocabulary has all tokens, not in the target's order."""
  config, network = loaded.config, loaded.network
  size, vocabulary = network.vocab_size, draft_vocabulary.ids(loaded.params)
  ids = np.arange(size) if vocabulary is None else np.asarray(vocabulary, np.int64)
  offsets = ids - np.arange(len(ids))
  if len(ids) == size and offsets.any():
    raise ValueError("vocabulary reorders all tokens: the format eagle3 keeps their order.")
  tensors = scatter(loaded.params, _layout(config, network, len(ids)), dtype)
  if len(ids) < size:
    tensors |= {"d2t": offsets, "t2d": np.isin(np.arange(size), ids)}
  raw = published.layer_json(network, config, dtype)
  raw |= {"architectures": list(_ARCHITECTURES[:1]), "attention_bias": network.qkv_bias,
          "draft_vocab_size": len(ids)}  # fmt: skip
  hidden_layers = hidden_layers_of(network.layers, config)
  if hidden_layers != _published_layers(network):
    raw["specjax_taps"] = list(hidden_layers)
  return published.FILES[0], tensors, raw
