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
  """LOSSY: end markers have logits of -inf, so that no text ends before its canvas does.

  The option logits_eos_inf of LLaDA-Instruct (Nie et al. 2025, arXiv 2502.09992, appendix B.4),
  whose fine-tuning padded answers with end markers, so that a canvas of many slots ends too soon.
  """

  def apply(params: Suppressed, memory, logits: Array, masked: Array, step: Array):
    token = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    never = (token[None, None] == params.tokens[..., None]).any(1)
    return jnp.where(never[:, None], -jnp.inf, logits), memory

  return Transform("end_suppressed", lambda B, W, V: (), apply, Suppressed)
