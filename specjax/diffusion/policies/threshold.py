"""All slots whose token is probable enough."""

import functools

from jax import Array

from specjax.diffusion.base import Policy, Prediction


@functools.cache
def threshold() -> Policy:
  """Commits where the token's probability reaches `params` f32[B]; published 0.9.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2).
  """

  def select(params: Array, memory, prediction: Prediction):
    return (
      prediction.open & (prediction.confidence >= params[:, None]),
      prediction.confidence,
      memory,
    )

  return Policy("threshold", lambda B, W, V: (), select)
