"""The layer that a published head has of its own, in its config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.checkpoints import hf_config, published
from specjax.models.config import Config


def network_of(raw: Mapping[str, Any], model: Config, qkv_bias: bool) -> tuple[Config, int]:
  """(the target's config with what the head's layer has otherwise, the layer's MLP width).

  Heads, rotary embedding and epsilon are those of the head's config.json. They differ in practice:
  EAGLE-3 for Llama 3.1 gives no `rope_theta`, and so turns by 10000 where its target has 500000.
  The width is 0 where it is the target's.

  Raises:
    ValueError: a head that is not of the target's width and vocabulary.
  """
  own = hf_config.from_json(raw)
  said = {"hidden_size": own.width, "vocab_size": own.vocab_size}
  published.check_target(said, model, {"hidden_size": "width", "vocab_size": "vocab_size"})
  network = dataclasses.replace(
    model, heads=own.heads, kv_heads=own.kv_heads, head_dim=own.head_dim, qkv_bias=qkv_bias,
    rope_theta=own.rope_theta, rope_scaling=own.rope_scaling, norm_epsilon=own.norm_epsilon,
  )  # fmt: skip
  return network, 0 if own.mlp_width == model.mlp_width else own.mlp_width


def layer_of(network: Config, mlp_width: int) -> Config:
  """The layer that EAGLE heads make of a network's config; a width of 0 is the network's."""
  return dataclasses.replace(
    network, layers=1, mlp_width=mlp_width or network.mlp_width, qk_norm=False, window=None
  )


def to_json(layer: Config) -> dict[str, Any]:
  """The config.json of a Llama with this layer; its biases are for the format to tell."""
  return hf_config.to_json(dataclasses.replace(layer, tied=False, qkv_bias=False, causal=True))
