"""Estimates of the chance that the target accepts, from the draft's own distribution.

Letters: B batch, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from specjax.trees.structure import gather


def entropy(log_probs: Array) -> Array:
  """f32[B] in nats, of log-probabilities f32[B, V] that may be -inf."""
  p = jnp.exp(log_probs)
  return -jnp.where(p > 0, p * log_probs, 0.0).sum(-1)


def by_entropy(log_probs: Array, weight: float | Array = 0.2) -> Array:
  """f32[B], 1 - sqrt(weight H), 0 at least, before a token is drawn.

  AdaEDL (Agrawal et al. 2024, arXiv 2410.18351, section 3). The acceptance rate is at least
  1 - sqrt(KL(q || p) / 2); the draft's entropy H stands in for the divergence.
  """
  return jnp.maximum(1 - jnp.sqrt(weight * entropy(log_probs)), 0.0)


def by_probability(log_probs: Array, token: Array) -> Array:
  """f32[B], q(token) of a token i32[B] that was drawn."""
  return jnp.exp(gather(log_probs, token[:, None]))[:, 0]
