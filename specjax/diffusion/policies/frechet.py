"""As many slots are committed as are surely right together.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from specjax.diffusion.base import Knob, Policy, Prediction
from specjax.diffusion.policies.factor import leading
from specjax.diffusion.policies.ranks import descending, rank


class Frechet(NamedTuple):
  """Knobs of `frechet`.

  Attributes:
    delta: f32[B], by how much the bound must exceed the last slot's doubt; published 0.25.
  """

  delta: Knob = 0.25


@functools.cache
def frechet() -> Policy:
  """LOSSY: commits the n surest slots, n the largest with max(0, sum c - (n - 1)) - (1 - c_n) > d.

  The sum is Frechet's lower bound on the probability that all n are right, over the n confidences;
  d is delta. Fast-dLLM++ (2026). With all confidences equal this is `factor` with f = 1 - d,
  otherwise it commits no less.
  """

  def select(params: Frechet, memory, prediction: Prediction):
    c = descending(prediction.confidence, prediction.open, -1.0)
    n = jnp.arange(1, c.shape[1] + 1, dtype=jnp.float32)[None]
    together = jnp.maximum(jnp.cumsum(c, 1) - (n - 1), 0.0)
    count = leading((together - (1 - c) > params.delta[:, None]) & (c >= 0))
    first = rank(prediction.confidence, prediction.open) < count[:, None]
    return first & prediction.open, prediction.confidence, memory

  return Policy("frechet", lambda B, W, V: (), select, Frechet)
