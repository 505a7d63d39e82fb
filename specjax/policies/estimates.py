"""Guesses of whether the target will accept, from the draft's own law.

Letters: B batch, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from specjax.trees.structure import at


def entropy(law: Array) -> Array:
  """f32[B] in nats, of log-probabilities f32[B, V] that may be -inf."""
  p = jnp.exp(law)
  return -jnp.where(p > 0, p * law, 0.0).sum(-1)


def by_entropy(law: Array, weight: float | Array = 0.2) -> Array:
  """f32[B], 1 - sqrt(weight H), 0 at least: for a token that is not drawn yet.

  AdaEDL (Agrawal et al. 2024, arXiv 2410.18351, section 3). The acceptance rate is at least
  1 - sqrt(KL(q || p) / 2); the draft's entropy in the place of the divergence makes a guess of it.
  """
  return jnp.maximum(1 - jnp.sqrt(weight * entropy(law)), 0.0)


def by_probability(law: Array, token: Array) -> Array:
  """f32[B], q(token): for a token i32[B] that was drawn."""
  return jnp.exp(at(law, token[:, None]))[:, 0]
