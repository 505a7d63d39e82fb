"""As many slots as are surely right together.

Letters: B batch, W window.
"""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Policy, Prediction
from specjax.diffusion.policies.factor import leading
from specjax.diffusion.policies.ranks import descending, rank


@functools.cache
def frechet() -> Policy:
  """Commits the n surest slots, n the largest with max(0, sum c - (n - 1)) - (1 - c_n) > delta.

  The sum is Frechet's lower bound on the probability that all n are right, over the n confidences.
  Fast-dLLM++ (2026); delta is `params` f32[B], published 0.25. With all confidences equal this is
  `factor` with f = 1 - delta, otherwise it commits no less.
  """

  def select(params: Array, memory, prediction: Prediction):
    c = descending(prediction.confidence, prediction.open, -1.0)
    n = jnp.arange(1, c.shape[1] + 1, dtype=jnp.float32)[None]
    together = jnp.maximum(jnp.cumsum(c, 1) - (n - 1), 0.0)
    count = leading((together - (1 - c) > params[:, None]) & (c >= 0))
    first = rank(prediction.confidence, prediction.open) < count[:, None]
    return first & prediction.open, prediction.confidence, memory

  return Policy("frechet", lambda B, W, V: (), select)
