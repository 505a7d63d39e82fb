"""A denoiser's input made of its tokens and of what it said of them in its last pass."""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.models.config import Config
from specjax.models.linear import fused, linear, lookup
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm, unit
from specjax.models.weights import Matrix

_INIT = nn.initializers.normal(0.02)


class SelfConditioning(nn.Module):
  """A gated MLP of soft embeddings is added to the embeddings, and the sum is normalised.

  DiffusionGemma (2026), after Analog Bits (Chen et al. 2022, arXiv 2208.04202). Where no pass has
  said anything the soft embeddings are 0, and so is what is added.
  """

  config: Config

  @nn.compact
  def __call__(self, embedded: Array, soft: Array) -> Array:
    """embedded and soft [B, N, E] -> [B, N, E], what the first layer reads."""
    c = self.config
    h = RMSNorm(c.norm_epsilon, name="soft_norm")(soft.astype(embedded.dtype))
    of_mlp = {"gate": c.mlp_width, "up": c.mlp_width}
    gate, up = fused(self, "gate_up", of_mlp, _INIT, c.width).linear(h)
    down = weight(self, "down", _INIT, (c.width, c.mlp_width))
    return unit(embedded + linear(nn.gelu(gate) * up, down), c.norm_epsilon)


def soft_embeddings(embedding: Matrix, probs: Array) -> Array:
  """[..., E]: the rows of an embedding [V, E] weighed by probabilities f32[..., V]."""
  whole = functools.partial(jnp.arange, dtype=jnp.int32)
  rows = embedding if isinstance(embedding, Array) else lookup(embedding, whole(probs.shape[-1]))
  return probs.astype(rows.dtype) @ rows
