"""EAGLE-1 heads on disk, as SafeAILab publishes them; EAGLE-2 drafts other trees with them.

config.json is that of a Llama with one layer. `fc` joins embedding and state, `layers.0` is the
layer, which has no norm before attention, and `embed_tokens` repeats the target's embedding.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import schema
from specjax.base import Params
from specjax.checkpoints import published
from specjax.checkpoints.heads import Loaded
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.drafters.eagle import EagleConfig
from specjax.drafters.eagle import eagle as build
from specjax.models.config import Config
from specjax.models.transformer import target

_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")
_EMBEDDING = "embed_tokens.weight"
_SCHEMA = {"qkv_bias": bool, "bias": bool, "specjax_depth": published.COUNT}


def _layout(c: EagleConfig, network: Config) -> published.Layout:
  E = network.width
  layout: published.Layout = {("fc",): [Fusion("fc.weight", (E, 2 * E))]}
  if c.bias:
    layout["fc_bias",] = [Fusion("fc.bias", (E,))]
  layer = published.layer_of(network, c.mlp_width)
  return layout | block(layer, ("layers", "layer_0"), "layers.0", norm=False)


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> Loaded:
  """A head for the target `model`.

  A file may have the target's embedding: its shape is checked and its values are dropped, for the
  target has them. Published files do not say how deep the head drafts: `specjax_depth` does, which
  `encode` writes, and otherwise the depth is that of the published code.
  """
  published.check_architecture(raw, _ARCHITECTURES)
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json")
  network, mlp_width = published.network_of(raw, model, own.get("qkv_bias", False))
  config = EagleConfig(own.get("specjax_depth", published.DEPTH), own.get("bias", True), mlp_width)
  path, tensors = published.read(directory, published.FILES)
  unused = {_EMBEDDING: (model.vocab_size, model.width)}
  params = published.gather(tensors, _layout(config, network), path, dtype, unused=unused)
  return Loaded(build(target(network), config), {"params": params}, (), None, config, network)


def encode(loaded: Loaded, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head, with the target's embedding, which the published code needs."""
  config, network = loaded.config, loaded.network
  tensors = scatter(loaded.params, _layout(config, network), dtype)
  embedding = target(network).embed(target_params, jnp.arange(network.vocab_size)[None])[0]
  tensors[_EMBEDDING] = np.asarray(embedding).astype(jnp.dtype(dtype))
  raw = published.layer_json(network, config, dtype)
  raw |= {"bias": config.bias, "qkv_bias": network.qkv_bias}
  return published.FILES[0], tensors, raw
