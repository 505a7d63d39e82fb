"""A bidirectional transformer as a denoiser: LLaDA, or with shifted states Dream."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.base import Denoiser
from specjax.models.config import Config
from specjax.models.transformer import Transformer


@functools.cache
def denoiser(config: Config, mask: int, shift: bool = False) -> Denoiser:
  """The network as the functions of the contract; one object per config, so jit caches hit.

  Args:
    config: not causal.
    mask: id of the mask token.
    shift: see `Denoiser.shift`.

  Raises:
    ValueError: a causal config, or a mask that is no token of it.
  """
  if config.causal:
    raise ValueError("causal=True: a denoiser sees both sides, accepted is causal=False.")
  if not 0 <= mask < config.vocab_size:
    raise ValueError(f"mask={mask}: accepted are 0 to {config.vocab_size - 1}.")
  apply: Callable[..., Any] = Transformer(config).apply

  def evaluate(params: Params, tokens: Array, seen: Array) -> Array:
    B, L = tokens.shape
    position = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
    who = jnp.broadcast_to(seen[:, None], (B, L, L))
    hidden, _ = apply(params, tokens, position, who)
    return hidden

  return Denoiser(config.vocab_size, mask, shift, evaluate, functools.partial(apply, method="head"))
