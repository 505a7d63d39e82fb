"""All slots of little entropy."""

import functools

from jax import Array

from specjax.diffusion.base import Policy, Prediction


@functools.cache
def entropy_threshold() -> Policy:
  """Commits where the entropy is `params` f32[B] nats or less; published 0.45 to 0.5.

  dParallel (Chen et al. 2025, arXiv 2509.26488), made for models distilled by `train.distill`.
  """

  def select(params: Array, memory, prediction: Prediction):
    return prediction.open & (prediction.entropy <= params[:, None]), -prediction.entropy, memory

  return Policy("entropy_threshold", lambda B, W, V: (), select)
