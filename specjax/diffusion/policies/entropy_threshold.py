"""All slots of little entropy."""

import functools

from jax import Array

from specjax.diffusion.base import Policy, Seen


@functools.cache
def entropy_threshold() -> Policy:
  """Commits where the entropy is `params` f32[B] nats or less; published 0.45 to 0.5.

  dParallel (Chen et al. 2025, arXiv 2509.26488), made for models distilled by `train.certainty`.
  """

  def select(params: Array, memory, seen: Seen):
    return seen.open & (seen.entropy <= params[:, None]), -seen.entropy, memory

  return Policy("entropy_threshold", lambda B, W, V: (), select)
