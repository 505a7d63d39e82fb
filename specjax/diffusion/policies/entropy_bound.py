"""Slots of the least entropy while their dependence on each other is bounded."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Policy, Prediction
from specjax.diffusion.policies.ranks import rank


@functools.cache
def entropy_bound() -> Policy:
  """Commits slots by rising entropy while those before them hold `params` f32[B] nats or less.

  EB-Sampler (Ben-Hamu et al. 2025, arXiv 2505.24857): the sum, less its largest term, bounds the
  mutual information of what is committed together. Published 0.1 to 0.15.
  """

  def select(params: Array, memory, prediction: Prediction):
    H = jnp.sort(jnp.where(prediction.open, prediction.entropy, jnp.inf), axis=1)
    before = jnp.pad(jnp.cumsum(H, 1), ((0, 0), (1, 0)))[:, :-1]
    count = ((before <= params[:, None]) & jnp.isfinite(H)).sum(1, dtype=jnp.int32)
    first = rank(-prediction.entropy, prediction.open) < count[:, None]
    return first & prediction.open, -prediction.entropy, memory

  return Policy("entropy_bound", lambda B, W, V: (), select)
