"""Alternating updates of several streams (AltUp; Baykal et al. 2023, arXiv 2301.13310), and a path
of low rank beside attention (LAuReL; Menghani et al. 2024, arXiv 2411.07501), as Gemma 3n has them.

The first stream passes a layer. What it says of all is predicted before, and corrected behind.

Letters: B batch, N nodes, E width, A streams, R rank.
"""

import statistics

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm

_INIT = nn.initializers.normal(0.02)


class StreamEnds(nn.Module):
  """The streams of embeddings in front of the layers, and one of them all behind."""

  width: int
  count: int

  def setup(self):
    E, others = self.width, self.count - 1
    self.apart = weight(self, "apart", _INIT, (others * E, E))
    self.together = [weight(self, f"together_{i}", _INIT, (E, E)) for i in range(1, others + 1)]

  def spread(self, x: Array) -> Array:
    """[B, N, E] -> [B, N, A, E], all as large as x."""
    others = linear(x, self.apart).reshape(*x.shape[:2], -1, self.width)
    return jnp.concatenate([x[:, :, None], _as_large(others, x)], 2)

  def joined(self, x: Array) -> Array:
    """[B, N, A, E] -> [B, N, E], their mean, of which all are as large as the first."""
    others = [linear(x[:, :, i + 1], w) for i, w in enumerate(self.together)]
    own = _as_large(jnp.stack(others, 2), x[:, :, 0])
    return (x[:, :, 0] + own.sum(2)) / self.count


def _as_large(x: Array, like: Array) -> Array:
  """x [B, N, A, E] with the root mean square of [B, N, E]."""
  wide = x.astype(jnp.float32)
  size = jnp.sqrt(jnp.square(like.astype(jnp.float32)).mean(-1, keepdims=True))[:, :, None]
  own = jnp.sqrt(jnp.maximum(jnp.square(wide).mean(-1, keepdims=True), 1e-5))
  return (wide * (size / own)).astype(x.dtype)


class AltUp(nn.Module):
  """What a layer predicts of the streams, and how it corrects them."""

  width: int
  count: int
  epsilon: float

  def setup(self):
    A = self.count
    self.norm = RMSNorm(self.epsilon)
    self.router = self.param("router", _INIT, (A, self.width))
    self.before = self.param("before", _INIT, (A * A, A))
    self.behind = self.param("behind", _INIT, (A, A))
    self.scale = self.param("scale", nn.initializers.ones, (self.width,))

  def _routed(self, x: Array) -> Array:
    """[B, N, E] -> [B, N, A]."""
    return jnp.tanh(linear(self.norm(x) / self.width, self.router))

  def predicted(self, x: Array) -> Array:
    """[B, N, A, E] -> [B, N, A, E]."""
    shares = linear(self._routed(x[:, :, 0]), self.before)
    shares = shares.reshape(*x.shape[:2], self.count, self.count, 1)
    return x + (shares * x[:, :, None]).sum(3)

  def corrected(self, predicted: Array, y: Array) -> Array:
    """What was predicted [B, N, A, E], with what the layer made y [B, N, E] of the first stream."""
    share = linear(self._routed(y), self.behind)[..., None] + 1
    return predicted + share * (y - predicted[:, :, 0])[:, :, None]

  def scaled(self, x: Array) -> Array:
    """The first stream [B, N, E], as the embeddings of a layer meet it."""
    return x * jnp.broadcast_to(self.scale, x.shape)


class Laurel(nn.Module):
  """x [B, N, E] and what a product of rank R makes of it, [B, N, E]."""

  rank: int
  epsilon: float

  @nn.compact
  def __call__(self, x: Array) -> Array:
    E = x.shape[-1]
    low = linear(x, weight(self, "down", _INIT, (self.rank, E)))
    y = linear(low, weight(self, "up", _INIT, (E, self.rank)))
    return x + RMSNorm(self.epsilon, name="norm")(y)


def largest(gate: Array, sparsity: float) -> Array:
  """gate [..., F] above the cut-off that a normal distribution of its mean and variance has for
  this share of numbers, less it, and else 0 (You et al. 2025, arXiv 2506.06644, section 3)."""
  x = gate.astype(jnp.float32)
  mean = x.mean(-1, keepdims=True)
  deviation = jnp.sqrt(jnp.square(x - mean).mean(-1, keepdims=True))
  cut = mean + deviation * statistics.NormalDist().inv_cdf(sparsity)
  return nn.relu(x - cut).astype(gate.dtype)
