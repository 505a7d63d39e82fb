"""DiffusionGemma's network as a denoiser: an encoder writes the cache, and a decoder reads it.

Both are one transformer, but for a scalar of each layer and for what the decoder makes of its own
last pass. The encoder is causal. The decoder's slots see each other and all that the encoder wrote,
and in a layer with a window of W slots the last W - 1 that it wrote; they write nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from specjax.base import Cache, Params
from specjax.diffusion.base import Denoiser, Earlier
from specjax.models.config import Config
from specjax.models.transformer import Transformer


def encoder(config: Config, params: Params) -> Params:
  """The encoder's parameters: the decoder's, with its own scalar of each layer."""
  own = dict(params["params"])
  for i in range(config.layers):
    own[f"layer_{i}"] = own[f"layer_{i}"] | {"layer_scale": own["encoder_scale"][i : i + 1]}
  return {"params": own}


def _cache(earlier: Earlier | None) -> Cache | None:
  """What the encoder wrote, whose first rows are all that is seen of it."""
  if earlier is None:
    return None
  return Cache(earlier.kv, earlier.visible.sum(1, dtype=jnp.int32))


@functools.cache
def canvas_denoiser(config: Config) -> Denoiser:
  """The network as the functions of the contract; one object per config, so jit caches hit."""
  apply: Callable[..., Any] = Transformer(config).apply

  def encode(params: Params, tokens: Array, position: Array, seen: Array, earlier=None):
    before = position[:, None, :] <= position[:, :, None]
    own = encoder(config, params)
    mask = before & (seen[:, None] | jnp.eye(tokens.shape[1], dtype=bool)[None])
    return apply(own, tokens, position, mask, _cache(earlier), method="features")[1]

  def evaluate(params: Params, tokens: Array, position: Array, seen: Array, earlier, soft: Array):
    N = tokens.shape[1]
    mask = seen[:, None] | jnp.eye(N, dtype=bool)[None]  # slots behind the end see themselves
    return apply(params, tokens, position, mask, _cache(earlier), soft, method="canvas_features")

  return Denoiser(
    config.vocab_size,
    None,
    False,
    evaluate,
    functools.partial(apply, method="head"),
    soften=lambda params, probs, step: apply(params, probs, method="soften"),
    encode=encode,
    length=config.canvas,
  )
