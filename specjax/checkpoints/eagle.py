"""EAGLE-1 heads on disk, as SafeAILab publishes them; EAGLE-2 draws other trees from the same.

config.json is that of a Llama with one layer. `fc` joins embedding and state, `layers.0` is the
layer, without a norm before attention, and `embed_tokens` the target's embedding once more.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import schema
from specjax.base import Params
from specjax.checkpoints import layer, published
from specjax.checkpoints.heads import Loaded
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.drafters.eagle import EagleConfig
from specjax.drafters.eagle import eagle as build
from specjax.models.config import Config
from specjax.models.transformer import target

_FILES = ("model.safetensors", "pytorch_model.bin")
_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")
_EMBEDDING = "embed_tokens.weight"
_DEPTH = 7  # of the trees that the published code draws
_SCHEMA = {"qkv_bias": bool, "bias": bool, "specjax_depth": published.COUNT}


def _layout(c: EagleConfig, network: Config) -> published.Layout:
  E = network.width
  layout: published.Layout = {("fc",): [Fusion("fc.weight", (E, 2 * E))]}
  if c.bias:
    layout["fc_bias",] = [Fusion("fc.bias", (E,))]
  own = layer.layer_of(network, c.mlp_width)
  return layout | block(own, ("layers", "layer_0"), "layers.0", norm=False)


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> Loaded:
  """A head for the target `model`.

  A file may have the target's embedding: its shape is checked, its values are dropped, for the
  target has them. Nothing published says how deep to guess: `specjax_depth`, which `encode` writes,
  or as deep as the published code does.
  """
  published.check_architecture(raw, _ARCHITECTURES)
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json")
  network, mlp_width = layer.network_of(raw, model, own.get("qkv_bias", False))
  config = EagleConfig(own.get("specjax_depth", _DEPTH), own.get("bias", True), mlp_width)
  path, tensors = published.read(directory, _FILES)
  unused = {_EMBEDDING: (model.vocab_size, model.width)}
  params = published.gather(tensors, _layout(config, network), path, dtype, unused=unused)
  return Loaded(build(target(network), config), {"params": params}, (), None, config, network)


def encode(loaded: Loaded, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head with the target's embedding, without which the published code reads no file."""
  config, network = loaded.config, loaded.network
  tensors = scatter(loaded.params, _layout(config, network), dtype)
  embedding = target(network).embed(target_params, jnp.arange(network.vocab_size)[None])[0]
  tensors[_EMBEDDING] = np.asarray(embedding).astype(jnp.dtype(dtype))
  raw = layer.to_json(layer.layer_of(network, config.mlp_width)) | {
    "bias": config.bias, "qkv_bias": network.qkv_bias, "torch_dtype": jnp.dtype(dtype).name,
    "specjax_depth": config.depth,
  }  # fmt: skip
  return _FILES[0], tensors, raw
