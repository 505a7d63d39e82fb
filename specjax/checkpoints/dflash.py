"""DFlash heads on disk, as z-lab publishes them and SpecForge trains them.

config.json is that of a Qwen3 with the head's layers, a `block_size`, root included, and
`dflash_config`: which token the masks are, and which of the target's layers are read, counted by
their outputs. `fc` and `hidden_norm` make one vector of these, `layers.{i}` are the layers and
`norm` is the last norm. Embedding and LM head are the target's and in no file.

Letters: L the target's layers.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import checks, schema
from specjax.base import Params
from specjax.checkpoints import hf_config, published
from specjax.checkpoints.heads import MOST, Loaded
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.drafters.dflash import DFlashConfig, layers_read
from specjax.drafters.dflash import dflash as build
from specjax.models.config import Config
from specjax.models.transformer import target

_ARCHITECTURES = ("DFlashDraftModel",)
_SCHEMA = {
  "num_hidden_layers": published.COUNT, "layer_types": tuple[str, ...],
  "block_size": functools.partial(checks.whole, least=2, most=MOST + 1),
}  # fmt: skip
_OWN = {
  "mask_token_id": int, "target_layer_ids": tuple[int, ...], "block_size": _SCHEMA["block_size"]
}  # fmt: skip
# Keys of either object that change the published network, and the value that leaves it as it is.
_PLAIN = {
  "is_causal": False, "attention_bias": False, "use_sliding_window": False,
  "sample_from_anchor": False, "use_qk_norm": True, "use_aux_hidden_state": True,
  "input_embedding_scale": 1, "output_multiplier": 1, "final_logit_softcapping": 0,
}  # fmt: skip


def _layer(c: DFlashConfig, network: Config) -> Config:
  return dataclasses.replace(published.layer_of(network, c.mlp_width), qk_norm=True)


def _layout(c: DFlashConfig, network: Config) -> published.Layout:
  E, inputs = network.width, len(layers_read(network.layers, c))
  layout: published.Layout = {
    ("fc",): [Fusion("fc.weight", (E, inputs * E))],
    ("context_norm", "weight"): [Fusion("hidden_norm.weight", (E,))],
    ("norm", "weight"): [Fusion("norm.weight", (E,))],
  }
  for i in range(c.layers):
    layout |= block(_layer(c, network), (f"layers_{i}", "layer_0"), f"layers.{i}")
  return layout


def _check_plain(raw: Mapping[str, Any]) -> None:
  """Raises ValueError for a feature of later heads, which `drafters.dflash` does not have."""
  for key, accepted in _PLAIN.items():
    if raw.get(key) not in (None, accepted):
      checks.refuse(f"{key} in config.json", raw[key], str(accepted).lower())
  types = raw.get("layer_types", ())
  if any(kind != "full_attention" for kind in types):
    checks.refuse("layer_types in config.json", types, "full_attention in all layers")


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> Loaded:
  """A head for the target `model`, which drafts chains, of `block_size` - 1 tokens at most.

  The output of the target's last layer is refused: programs differ in whether it is normed.
  """
  published.check_architecture(raw, _ARCHITECTURES)
  where = f"{directory}/config.json"
  inner = raw.get("dflash_config")
  if not isinstance(inner, dict):
    checks.refuse(f"{where}: dflash_config", inner, "an object")
  _check_plain({**raw, **inner})
  outer = schema.fields(raw, _SCHEMA, where, ["num_hidden_layers"])
  needed = [key for key in _OWN if key != "block_size" or key not in outer]
  own = outer | schema.fields(inner, _OWN, f"{where}: dflash_config", needed)
  for i in own["target_layer_ids"]:
    checks.whole(f"{where}: target_layer_ids", i, 0, model.layers - 2, note="not the last layer's")
  network, mlp_width = published.network_of(raw, model, qkv_bias=False)
  network = dataclasses.replace(network, qk_norm=True)
  config = DFlashConfig(
    own["block_size"] - 1, own["num_hidden_layers"], tuple(i + 1 for i in own["target_layer_ids"]),
    mlp_width, own["mask_token_id"],
  )  # fmt: skip
  path, tensors = published.read(directory, published.FILES)
  head = build(target(network), config)
  params = published.gather(tensors, _layout(config, network), path, dtype)
  return Loaded(head, {"params": params}, (), None, config, network)


def encode(loaded: Loaded, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its mask is no token, its layers are not Qwen3's, or it reads the
  target's embeddings or last output."""
  config, network = loaded.config, loaded.network
  if config.mask_token is None:
    raise ValueError("mask_token=None: the format dflash has the embedding of a token as its mask.")
  if network.qkv_bias or not network.qk_norm:
    raise ValueError(f"qk_norm={network.qk_norm} with qkv_bias={network.qkv_bias}: the format "
                     "dflash has norms on q and k, and no biases.")  # fmt: skip
  taps = layers_read(network.layers, config)
  if not all(0 < i < network.layers for i in taps):
    raise ValueError(f"hidden_layers={taps}: the format dflash has layers 1 to "
                     f"{network.layers - 1}, whose input is another's output.")  # fmt: skip
  tensors = scatter(loaded.params, _layout(config, network), dtype)
  layers = dataclasses.replace(
    _layer(config, network), layers=config.layers, tied=False, causal=True
  )
  ids = {"mask_token_id": config.mask_token, "target_layer_ids": [i - 1 for i in taps]}
  return published.FILES[0], tensors, hf_config.to_json(layers) | {
    "architectures": list(_ARCHITECTURES), "block_size": config.depth + 1, "dflash_config": ids,
    "num_target_layers": network.layers, "torch_dtype": jnp.dtype(dtype).name,
  }  # fmt: skip
