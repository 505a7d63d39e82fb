"""The energy of a drawn text: a copy of the denoiser's layers with one number as their output.

Letters: B texts, N slots, E width, H hidden width.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.reweight import Energy, Guess
from specjax.models.config import Config
from specjax.models.transformer import Transformer


class EnergyNetwork(NamedTuple):
  """Weights of `learned`.

  Attributes:
    network: those of the layers, and of the embedding.
    mark: f32[E], what a slot that was masked has besides its token's embedding.
    into: f32[H, E]; into_bias f32[H].
    out: f32[H]; out_bias f32[].
  """

  network: Params
  mark: Array
  into: Array
  into_bias: Array
  out: Array
  out_bias: Array


def begin(key: Array, network: Params, width: int, hidden: int) -> EnergyNetwork:
  """The weights before training: the denoiser's own layers, whose energy of every text is 0."""
  into = jax.random.normal(key, (hidden, width)) / width**0.5
  zeros = jnp.zeros(hidden)
  return EnergyNetwork(network, jnp.zeros(width), into, zeros, zeros, jnp.float32(0))


@functools.cache
def learned(config: Config) -> Energy:
  """The energy that a trained network gives a text; see `train.energy`.

  EDLM (Xu et al. 2024, arXiv 2410.21357, section 3.3): a copy of the denoiser, whose states are
  averaged and read by an MLP. The paper joins the embeddings of x_t and x_0 by a linear layer. As
  x_t is x_0 with the mask token in some slots, a mark on these slots says as much.
  """
  apply: Callable[..., Any] = Transformer(config).apply

  def energy(params: EnergyNetwork, guess: Guess) -> Array:
    B, N = guess.tokens.shape
    position = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, N))
    sees = jnp.broadcast_to(guess.seen[:, None], (B, N, N))
    drawn = guess.masked[..., None].astype(jnp.float32)
    features, _ = apply(
      params.network,
      guess.tokens,
      position,
      sees,
      added=drawn * params.mark[None, None],
      method="features",
    )
    # The mean is over the drawn slots: the others are alike in all texts that are compared.
    states = (drawn * features.hidden).sum(1) / jnp.maximum(drawn.sum(1), 1)
    hidden = jax.nn.relu(states @ params.into.T + params.into_bias[None])
    return hidden @ params.out + params.out_bias[None]

  return energy
