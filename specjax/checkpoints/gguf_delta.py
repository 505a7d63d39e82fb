"""Recurrent layers of GGUF files, as llama.cpp's converter writes them.

In all of them (Qwen3-Next, Qwen3.5, Granite 4) rates of decay are themselves, not their logarithms,
and a convolution has no axis of 1. Of Gated DeltaNets queries, keys and values are a tensor, and so
are the gates of the output; in Qwen3.5 the value heads of a key head are not beside each other: the
first ones of all key heads come first. In Mamba-2 what a head has one of has an axis of 1, and
norms have one for groups.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax.checkpoints.hf_layout import Fusion
from specjax.models.config import GatedDelta, Mamba

SLOPE, SKIP, KERNEL = "ssm_a", "ssm_d", "ssm_conv1d"
_FLAT = (SLOPE, SKIP, "ssm_norm")
_OF_VALUES = ("attn_gate", "ssm_alpha", "ssm_beta", SLOPE, "ssm_dt", "ssm_out")
"""What has value heads alone, by the parts of names."""
_TILED = ("qwen35", "qwen35moe")


def sizes(raw: Mapping[str, Any]) -> dict[str, Any]:
  """The width of a value, of that of all values, for a config.json."""
  return {"linear_value_head_dim": raw["linear_values"] // raw["linear_num_value_heads"]}


def apart(parts: list[Fusion], c: GatedDelta | Mamba | None) -> list[Fusion]:
  """Queries, keys and values, and gates, which one tensor of Qwen3-Next's directories has."""
  stem, found, kind = parts[0].name.partition("in_proj_qkvz")
  if not isinstance(c, GatedDelta) or not found:
    return parts
  (rows, E), gates = parts[0].shape, c.value_heads * c.value_dim
  return [Fusion(f"{stem}in_proj_{x}{kind}", (n, E))
          for x, n in (("qkv", rows - gates), ("z", gates))]  # fmt: skip


def shape(part: str, stored: tuple[int, ...]) -> tuple[int, ...]:
  """The shape that `ours` gives a tensor."""
  if part in _FLAT:
    return (math.prod(stored),)
  return (stored[0], 1, stored[1]) if part == KERNEL and len(stored) == 2 else stored


def part_of(name: str) -> str:
  """What a tensor is, of blk.NUMBER.PART.weight; a decay and a skip have no ending."""
  return name.split(".")[-1] if name.endswith((SLOPE, SKIP)) else name.split(".")[-2]


def is_recurrent(part: str) -> bool:
  """Whether `ours` may change a tensor of a model with recurrent layers."""
  return part in (*_OF_VALUES, *_FLAT, KERNEL, "attn_qkv")


def ours(part: str, x: np.ndarray, c: GatedDelta | Mamba, architecture: str) -> np.ndarray:
  """Our values of a tensor's."""
  tiled = (*_OF_VALUES, KERNEL, "attn_qkv")
  if isinstance(c, GatedDelta) and architecture in _TILED and part in tiled:
    first = 2 * c.key_heads * c.key_dim if part in (KERNEL, "attn_qkv") else 0
    axis = 1 if part == "ssm_out" else 0
    before, values = np.split(x, [first], axis)
    x = np.concatenate([before, _beside(values, axis, c)], axis)
  x = np.log(-x) if part == SLOPE else x
  return x.reshape(shape(part, x.shape))


def _beside(x: np.ndarray, axis: int, c: GatedDelta) -> np.ndarray:
  """With the value heads of a key head beside each other."""
  heads = c.value_heads // c.key_heads, c.key_heads, -1
  apart = x.reshape(*x.shape[:axis], *heads, *x.shape[axis + 1 :])
  return apart.swapaxes(axis, axis + 1).reshape(x.shape)
