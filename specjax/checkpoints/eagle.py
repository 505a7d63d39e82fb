"""EAGLE-1 heads on disk, as SafeAILab publishes them; EAGLE-2 draws other trees from the same.

config.json is that of a Llama with one layer. `fc` joins embedding and state, `layers.0` is the
layer, without a norm before attention, and `embed_tokens` the target's embedding once more.
"""

import pathlib
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from specjax import schema
from specjax.base import Params
from specjax.checkpoints import hf_config, layer, published
from specjax.checkpoints.heads import Loaded, read_config
from specjax.checkpoints.hf_layout import Fusion
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
  return layout | layer.block(("layers", "layer_0"), "layers.0", own, norm=False)


def recognises(raw: dict[str, Any]) -> bool:
  """Whether a config.json is of this format: a family's, one layer, no draft vocabulary."""
  family, layers = raw.get("model_type"), raw.get("num_hidden_layers")
  return family in hf_config.FAMILIES and layers == 1 and "draft_vocab_size" not in raw


def load(directory: str | pathlib.Path, model: Config, dtype: DTypeLike = jnp.float32) -> Loaded:
  """A head for the target `model`.

  A file may have the target's embedding: its shape is checked, its values are dropped, for the
  target has them. Nothing published says how deep to guess: `specjax_depth`, which `save` writes,
  or as deep as the published code does.

  Raises:
    ValueError: another architecture, a head for another target, or missing, extra or misshapen
      tensors.
  """
  raw = read_config(directory)
  published.check_architecture(raw, _ARCHITECTURES)
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json")
  network, mlp_width = layer.network_of(raw, model, own.get("qkv_bias", False))
  config = EagleConfig(own.get("specjax_depth", _DEPTH), own.get("bias", True), mlp_width)
  path, tensors = published.read(directory, _FILES)
  unused = {_EMBEDDING: (model.vocab_size, model.width)}
  params = published.gather(tensors, _layout(config, network), path, dtype, unused=unused)
  return Loaded(build(target(network), config), {"params": params}, (), None, config, network)


def save(
  directory: str | pathlib.Path,
  config: EagleConfig,
  params: Params,
  network: Config,
  embedding: Array,
  *,
  base: str,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes what `load` reads.

  Args:
    network: of the target, or as `load` has it.
    embedding: [V, E], the target's, without which the published code of EAGLE-1 reads no file.
    base: names the target.

  Raises:
    ValueError: a draft vocabulary, or a weight that is not finite in `dtype`.
  """
  published.refuse_vocabulary(params, "eagle")
  raw = layer.to_json(layer.layer_of(network, config.mlp_width)) | {
    "bias": config.bias,
    "qkv_bias": network.qkv_bias,
    "torch_dtype": jnp.dtype(dtype).name,
    "base_model_name_or_path": base,
    "specjax_depth": config.depth,
  }
  layout = _layout(config, network)
  layout["embedding",] = [Fusion(_EMBEDDING, (network.vocab_size, network.width))]
  own = {"params": params["params"] | {"embedding": embedding}}
  tensors = published.scatter(own, layout, dtype)
  published.write(directory, _FILES[0], tensors, raw)
