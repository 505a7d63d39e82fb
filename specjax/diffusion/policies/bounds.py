"""As many of the best slots are committed as a bound allows.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Knob, Policy, Prediction
from specjax.diffusion.policies.ranks import best


def _leading(ok: Array) -> Array:
  """i32[B]: how many of bool[B, W] are True before the first that is not."""
  return jnp.cumprod(ok.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)


def _confidences(prediction: Prediction) -> tuple[Array, Array]:
  """(c f32[B, W], the n-th highest confidence of an open slot, then -1; n f32[1, W])."""
  c = -jnp.sort(jnp.where(prediction.open, -prediction.confidence, 1.0), axis=1)
  return c, jnp.arange(1, c.shape[1] + 1, dtype=jnp.float32)[None]


class Factor(NamedTuple):
  """Knobs of `factor`.

  Attributes:
    most: f32[B], f of the rule; published 1.
  """

  most: Knob = 1.0


@functools.cache
def factor() -> Policy:
  """LOSSY: commits the n surest slots, n the largest with (n + 1) (1 - c_n) <= f.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2); c_n is the n-th confidence.
  """

  def count(params: Factor, prediction: Prediction) -> Array:
    c, n = _confidences(prediction)
    return _leading((n + 1) * (1 - c) <= params.most[:, None])

  return best("factor", lambda prediction: prediction.confidence, count, Factor)


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

  def count(params: Frechet, prediction: Prediction) -> Array:
    c, n = _confidences(prediction)
    together = jnp.maximum(jnp.cumsum(c, 1) - (n - 1), 0.0)
    return _leading((together - (1 - c) > params.delta[:, None]) & (c >= 0))

  return best("frechet", lambda prediction: prediction.confidence, count, Frechet)


class EntropyBound(NamedTuple):
  """Knobs of `entropy_bound`.

  Attributes:
    most: f32[B], nats that the slots before one may hold; published 0.1 to 0.15.
  """

  most: Knob = 0.1


@functools.cache
def entropy_bound() -> Policy:
  """LOSSY: commits slots by rising entropy while those before them hold few nats.

  EB-Sampler (Ben-Hamu et al. 2025, arXiv 2505.24857): the sum, less its largest term, bounds the
  mutual information of what is committed together.
  """

  def count(params: EntropyBound, prediction: Prediction) -> Array:
    H = jnp.sort(jnp.where(prediction.open, prediction.entropy, jnp.inf), axis=1)
    before = jnp.pad(jnp.cumsum(H, 1), ((0, 0), (1, 0)))[:, :-1]
    return ((before <= params.most[:, None]) & jnp.isfinite(H)).sum(1, dtype=jnp.int32)

  return best("entropy_bound", lambda prediction: -prediction.entropy, count, EntropyBound)
