"""The layer that a published head has of its own: its tensors, and its config.json.

Letters: E width, F width of the MLP, C head dimension.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.checkpoints import hf_config, published
from specjax.checkpoints.hf_layout import Fusion
from specjax.models.config import Config


def block(
  ours: tuple[str, ...], theirs: str, c: Config, *, inputs: int = 0, norm: bool = True
) -> published.Layout:
  """A `transformer.Block`, with the names of a Hugging Face layer.

  Args:
    ours, theirs: where it is.
    c: its config.
    inputs: width of what attention reads; 0 is E.
    norm: whether it has a norm before attention.
  """
  E, F, C = c.width, c.mlp_width, c.head_dim
  attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
  qkv = [("q_proj", c.heads * C), ("k_proj", c.kv_heads * C), ("v_proj", c.kv_heads * C)]
  layout: published.Layout = {
    (*ours, "qkv"): [Fusion(f"{attention}.{name}.weight", (n, inputs or E)) for name, n in qkv],
    (*ours, "out"): [Fusion(f"{attention}.o_proj.weight", (E, c.heads * C))],
    (*ours, "mlp_norm", "weight"): [Fusion(f"{theirs}.post_attention_layernorm.weight", (E,))],
    (*ours, "gate_up"): [Fusion(f"{mlp}.{name}_proj.weight", (F, E)) for name in ("gate", "up")],
    (*ours, "down"): [Fusion(f"{mlp}.down_proj.weight", (E, F))],
  }
  if norm:
    layout[(*ours, "attention_norm", "weight")] = [Fusion(f"{theirs}.input_layernorm.weight", (E,))]
  if c.qkv_bias:
    layout[(*ours, "qkv_bias")] = [Fusion(f"{attention}.{name}.bias", (n,)) for name, n in qkv]
  if c.qk_norm:
    for name in ("q_norm", "k_norm"):
      layout[(*ours, name, "weight")] = [Fusion(f"{attention}.{name}.weight", (C,))]
  return layout


def network_of(raw: Mapping[str, Any], model: Config, qkv_bias: bool) -> tuple[Config, int]:
  """(the target's config with what the head's layer has otherwise, the layer's MLP width).

  Heads, rotary embedding and epsilon are those of the head's config.json. They differ in practice:
  EAGLE-3 for Llama 3.1 gives no `rope_theta`, and so turns by 10000 where its target has 500000.
  The width is 0 where it is the target's.

  Raises:
    ValueError: a head that is not of the target's width and vocabulary.
  """
  own = hf_config.from_json(raw)
  for key, theirs, ours in (
    ("hidden_size", own.width, model.width), ("vocab_size", own.vocab_size, model.vocab_size)
  ):  # fmt: skip
    if theirs != ours:
      raise ValueError(f"{key}={theirs} in config.json: accepted is the target's, {ours}.")
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
