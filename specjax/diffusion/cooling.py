"""Logits are divided by a temperature that falls from round to round of a block."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Count, Parameter, Transform


class Cooling(NamedTuple):
  """Parameters of `cooling`; the defaults are published.

  Attributes:
    first: f32[B], the temperature of a block's first round.
    last: f32[B], the one that it falls to, which it has not reached in the last round.
    steps: i32[B], N, how many rounds it takes.
  """

  first: Parameter = 0.8
  last: Parameter = 0.4
  steps: Count = 48


@functools.cache
def cooling() -> Transform:
  """LOSSY: the distributions grow sharper from round to round of a block.

  DiffusionGemma (2026): round n of N, from 0, divides logits by last + (first - last) (N - n) / N.
  What a policy is told, what is drawn and what a denoiser reads of its last pass are of the result;
  a request's own temperature comes on top.

  Measured: 108 of 108 canvases equal (changes)
  """

  def apply(params: Cooling, memory, logits: Array, masked: Array, step: Array):
    left = jnp.maximum(params.steps - step, 1) / params.steps
    temperature = params.last + (params.first - params.last) * left
    return logits / temperature[:, None, None], memory

  return Transform("cooling", lambda B, W, V: (), apply, Cooling)
