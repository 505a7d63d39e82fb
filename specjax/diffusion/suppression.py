"""Tokens that are never said."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Transform


class Suppressed(NamedTuple):
  """The params of `end_suppressed`: i32[B, M], the tokens that no slot gets."""

  tokens: Array


@functools.cache
def end_suppressed() -> Transform:
  """LOSSY: end markers are never said, so that no text ends before its canvas.

  The option logits_eos_inf of LLaDA-Instruct (Nie et al. 2025, arXiv 2502.09992, appendix B.4),
  whose fine-tuning padded answers with end markers, so that a canvas of many slots ends too soon.

  Their logits are -inf. Of answers of one line none is right.

  Measured: 0 % right (denoising_lists)
  """

  def apply(params: Suppressed, memory, logits: Array, masked: Array, step: Array):
    token = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    never = (token[None, None] == params.tokens[..., None]).any(1)
    return jnp.where(never[:, None], -jnp.inf, logits), memory

  return Transform("end_suppressed", lambda B, W, V: (), apply, Suppressed)
