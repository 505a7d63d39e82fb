"""A small network of hidden width H says which tokens are final already."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Policy, Prediction, Probability, at_least_one


class Filter(NamedTuple):
  """Parameters of `learned`, an MLP over the confidences of all slots of the window.

  Attributes:
    into: f32[H, W]; into_bias f32[H].
    out: f32[W, H]; out_bias f32[W].
    least: f32[B], what it must say; published 0.96 (LLaDA), 0.9 (Dream).
  """

  into: Array
  into_bias: Array
  out: Array
  out_bias: Array
  least: Probability = 0.96


def logits(params: Filter, confidence: Array) -> Array:
  """f32[B, W]: log-odds that each slot's token is the final one; confidence f32[B, W]."""
  hidden = jax.nn.relu(confidence @ params.into.T + params.into_bias[None])
  return hidden @ params.out.T + params.out_bias[None]


@functools.cache
def learned() -> Policy:
  """LOSSY: commits what a trained filter is sure of, and the surest slot besides.

  Learn2PD (Bao et al. 2025, arXiv 2509.25188). The filter belongs to one model and one window;
  `train.filter` makes it. `steps` adds more slots than one, as the published program does where it
  has fewer steps than slots.

  Measured: 2.5 passes, 91.5 % right (denoising_lists)
  Train: python -m specjax.train.filter
  """

  def select(params: Filter, memory: Any, prediction: Prediction) -> tuple[Array, Array, Any]:
    open_, c = prediction.open, prediction.confidence
    surest = at_least_one(jnp.zeros_like(open_), c, open_)
    final = jax.nn.sigmoid(logits(params, c))
    return surest | (open_ & (final > params.least[:, None])), c, memory

  return Policy("learned", lambda B, W, V: (), select, Filter)
