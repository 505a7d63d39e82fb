"""Recurrent layers of GGUF files (Qwen3-Next and Qwen3.5), as llama.cpp's converter writes them.

Queries, keys and values are a tensor, and so are the gates of the output; rates of decay are
themselves, not their logarithms; a convolution has no axis of 1. In Qwen3.5 the value heads of a
key head are not beside each other: the first ones of all key heads come first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax.checkpoints.hf_layout import Fusion
from specjax.models.config import GatedDelta

SLOPE, KERNEL = "ssm_a", "ssm_conv1d"
_OF_VALUES = ("attn_gate", "ssm_alpha", "ssm_beta", SLOPE, "ssm_dt", "ssm_out")
"""What has value heads alone, by the parts of names."""
_TILED = ("qwen35", "qwen35moe")


def sizes(raw: Mapping[str, Any]) -> dict[str, Any]:
  """The width of a value, of that of all values, for a config.json."""
  return {"linear_value_head_dim": raw["linear_values"] // raw["linear_num_value_heads"]}


def apart(parts: list[Fusion], c: GatedDelta | None) -> list[Fusion]:
  """Queries, keys and values, and gates, which one tensor of Qwen3-Next's directories has."""
  stem, found, kind = parts[0].name.partition("in_proj_qkvz")
  if c is None or not found:
    return parts
  (rows, E), gates = parts[0].shape, c.value_heads * c.value_dim
  return [Fusion(f"{stem}in_proj_{x}{kind}", (n, E))
          for x, n in (("qkv", rows - gates), ("z", gates))]  # fmt: skip


def shape(part: str, stored: tuple[int, ...]) -> tuple[int, ...]:
  """The shape that `ours` gives a tensor."""
  return (stored[0], 1, stored[1]) if part == KERNEL else stored


def part_of(name: str) -> str:
  """What a tensor is, of blk.NUMBER.PART.weight; a decay has no ending."""
  return SLOPE if name.endswith(SLOPE) else name.split(".")[-2]


def is_recurrent(part: str) -> bool:
  """Whether `ours` may change a tensor of a model with recurrent layers."""
  return part in (*_OF_VALUES, KERNEL, "attn_qkv")


def ours(part: str, x: np.ndarray, c: GatedDelta, architecture: str) -> np.ndarray:
  """Our values of a tensor's."""
  first = 2 * c.key_heads * c.key_dim if part in (KERNEL, "attn_qkv") else 0
  if architecture in _TILED and is_recurrent(part):
    axis = 1 if part == "ssm_out" else 0
    before, values = np.split(x, [first], axis)
    x = np.concatenate([before, _beside(values, axis, c)], axis)
  if part == SLOPE:
    return np.log(-x)
  return x.reshape(shape(part, x.shape))


def _beside(x: np.ndarray, axis: int, c: GatedDelta) -> np.ndarray:
  """With the value heads of a key head beside each other."""
  heads = c.value_heads // c.key_heads, c.key_heads, -1
  apart = x.reshape(*x.shape[:axis], *heads, *x.shape[axis + 1 :])
  return apart.swapaxes(axis, axis + 1).reshape(x.shape)
