"""The sizes and features of a network of the Llama family."""

import dataclasses
import math
from typing import Literal

import numpy as np

from specjax import checks


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Stretching of rotary frequencies, by `factor`, for contexts longer than `original_length`.

  Attributes:
    kind: "linear" divides every frequency by `factor`; "llama3" (Llama 3.1 release code) divides
      the low frequencies only, blending between the two limits.
    low, high: "llama3" limits, in full turns over `original_length` tokens.
  """

  kind: Literal["linear", "llama3"]
  factor: float
  low: float = 1.0
  high: float = 4.0
  original_length: int = 8192


@dataclasses.dataclass(frozen=True)
class Config:
  """One transformer for Llama 1-3, Mistral, Qwen2 and Qwen3.

  Attributes:
    vocab_size, width, layers, heads, kv_heads, head_dim, mlp_width: V, E, L, H, K, C and the width
      of the MLP.
    max_length: positions that the model was trained for.
    tied: whether the LM head is the embedding.
    qkv_bias: whether q, k and v have biases (Qwen2).
    qk_norm: whether RMSNorm is applied to each head's q and k (Qwen3).
    window: how many of the last positions a token sees (Mistral v0.1), or None for all.
    causal: False lets every position see every other (masked diffusion).
    block_length: where causal is False, the length of the blocks that it is causal over (block
      diffusion): a position sees its own block and those before it. None for no blocks.
    any_order: whether the weights are those of a model of any slots given any others, with two
      rows for every slot, see `models.any_order`.
  """

  vocab_size: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp_width: int
  max_length: int = 2048
  rope_theta: float = 10000.0
  rope_scaling: RopeScaling | None = None
  norm_epsilon: float = 1e-5
  tied: bool = True
  qkv_bias: bool = False
  qk_norm: bool = False
  window: int | None = None
  causal: bool = True
  block_length: int | None = None
  any_order: bool = False

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if field.type is int:
        checks.whole(field.name, getattr(self, field.name), 1)
    if self.heads % self.kv_heads:
      raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}.")
    if self.head_dim % 2:
      raise ValueError(f"head_dim={self.head_dim} must be even: rotary embedding turns pairs.")
    if self.block_length is not None:
      checks.whole("block_length", self.block_length, 1, note="positions")
      if self.causal:
        raise ValueError(f"block_length={self.block_length}: accepted is None with causal=True.")
    if self.any_order and (self.causal or self.block_length is not None):
      raise ValueError("any_order=True: accepted is False with causal=True, or with blocks.")


def rope_frequencies(config: Config) -> np.ndarray:
  """Angle per position of each pair, f32[C / 2], in radians."""
  exponent = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
  frequency = config.rope_theta**-exponent
  scaling = config.rope_scaling
  if scaling is not None and scaling.kind == "linear":
    frequency = frequency / scaling.factor
  elif scaling is not None:
    turns = scaling.original_length * frequency / (2 * math.pi)
    keep = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
    frequency = frequency * (keep + (1 - keep) / scaling.factor)
  return frequency.astype(np.float32)
