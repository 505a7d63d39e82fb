"""EAGLE-1 heads on disk, as SafeAILab publishes them; EAGLE-2 drafts other trees with them.

config.json is that of a Llama with one layer. `fc` joins embedding and state, `layers.0` is the
layer, which has no norm before attention, and `embed_tokens` is the embedding, as a rule the
target's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.heads.eagle import EagleConfig
from specjax.heads.eagle import eagle as build
from specjax.heads.embedding import of_target
from specjax.models.config import Config
from specjax.models.transformer import target

_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")
_SCHEMA = {"qkv_bias": bool, "bias": bool, "specjax_depth": published.COUNT}


def _layout(c: EagleConfig, network: Config) -> published.Layout:
  E = network.width
  layout: published.Layout = {("fc",): [Fusion("fc.weight", (E, 2 * E))]}
  if c.bias:
    layout["fc_bias",] = [Fusion("fc.bias", (E,))]
  if c.own_embedding:
    layout["embedding",] = [Fusion(published.EMBEDDING, (network.vocab_size, E))]
  layer = published.layer_of(network, c.mlp_width)
  return layout | block(layer, ("layers", "layer_0"), "layers.0", norm=False)


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`.

  Published files do not say how deep the head drafts: `specjax_depth` does, which `encode` writes,
  and otherwise the depth and the tree are those of the published code.
  """
  published.check_architecture(raw, _ARCHITECTURES)
  where = f"{directory}/config.json"
  own = checks.fields_of(raw, _SCHEMA, where)
  published.check_keys(raw, where, _SCHEMA)
  network, mlp_width = published.network_of(raw, model, own.get("qkv_bias", False))
  path, tensors = published.read(directory, published.FILES)
  config = EagleConfig(
    own.get("specjax_depth", published.TREE.depth),
    own.get("bias", True),
    mlp_width,
    own_embedding=published.EMBEDDING in tensors,
    window=published.window_of(raw, where),
  )
  params = published.gather(tensors, _layout(config, network), path, dtype)
  head = build(target(network), config)
  tree = None if "specjax_depth" in own else published.TREE
  return LoadedHead(head, {"params": params}, (), None, config, network, tree)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head, with its own embedding or the target's, since the published code needs one."""
  config, network = loaded.config, loaded.network
  tensors = scatter(loaded.params, _layout(config, network), dtype)
  if not config.own_embedding:
    embedding = of_target(target(network), target_params)
    tensors[published.EMBEDDING] = np.asarray(embedding).astype(jnp.dtype(dtype))
  raw = published.layer_json(network, config, dtype)
  raw |= {"bias": config.bias, "qkv_bias": network.qkv_bias}
  return published.FILES[0], tensors, raw
