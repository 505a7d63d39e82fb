"""EAGLE-3 heads on disk, as SafeAILab, SpecForge and speculators publish them.

`midlayer` is the layer, in the format of speculators `layers.0`; the rest is in `eagle3_file`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints import eagle3_file, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, scatter
from specjax.heads.eagle3 import Eagle3Config
from specjax.heads.eagle3 import eagle3 as build
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.models.config import Config
from specjax.models.transformer import target

_ARCHITECTURES = (
  "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM", "Eagle3Speculator",
  "Eagle3DraftModel",
)  # fmt: skip


def _layout(c: Eagle3Config, network: Config, words: int, name: str) -> published.Layout:
  """The parameters; `name` is the layer's."""
  E, inputs = network.width, len(hidden_layers_of(network.layers, c.hidden_layers))
  layout = eagle3_file.layout(c, network, words, name)
  if c.norm_before_fc:
    layout["joint_norm", "weight"] = [Fusion("input_norm.weight", (inputs * E,))]
  for i in range(inputs if c.fc_norm else 0):
    layout[f"fc_norm_{i}", "weight"] = [Fusion(f"fc_norm.{i}.weight", (E,))]
  return layout


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`; the depth is found as in `eagle`.

  `num_hidden_layers` is not read: the head for Vicuna 13B says 40 and holds one layer, as all
  others do.
  """
  depth = {"specjax_depth": published.COUNT}
  raw, own = eagle3_file.fields(raw, depth, "eagle3", _ARCHITECTURES, directory, model)
  network, mlp_width = published.network_of(raw, model, model.qkv_bias)
  path, tensors = published.read(directory, published.FILES)
  config = Eagle3Config(
    own.get("specjax_depth", published.TREE.depth),
    eagle3_file.hidden_layers(own, model),
    mlp_width,
    own.get("attention_bias", False),
    own_embedding=published.EMBEDDING in tensors,
    **{name: own.get(name, False) for name in eagle3_file.OPTIONS},
    window=published.window_of(raw, f"{directory}/config.json"),
  )
  words = own["draft_vocab_size"]
  layout = _layout(config, network, words, eagle3_file.name_of_layer(tensors))
  params = eagle3_file.gather(tensors, layout, words, model, path, dtype)
  head, tree = build(target(network), config), None if "specjax_depth" in own else published.TREE
  return LoadedHead(head, params, (), None, config, network, tree)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its draft vocabulary has all tokens, not in the target's order."""
  config, network = loaded.config, loaded.network
  words, tables = eagle3_file.tables(loaded.params, network.vocab_size, "eagle3")
  tensors = scatter(loaded.params, _layout(config, network, words, "midlayer"), dtype)
  raw = eagle3_file.to_json(config, network, words, _ARCHITECTURES[0], dtype)
  return published.FILES[0], tensors | tables, raw
