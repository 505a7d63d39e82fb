"""EAGLE: one layer that continues the target's states, token by token.

Letters: B batch, N rows, E width, D depth.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import draft_vocabulary, embedding
from specjax.heads.attending import Attending
from specjax.heads.base import LossWeights
from specjax.models.linear import linear
from specjax.models.lora import weight


@dataclasses.dataclass(frozen=True)
class EagleConfig:
  """Shape of the head.

  Attributes:
    depth: D, how far ahead it may guess.
    bias: of the projection before the layer.
    mlp_width: of the layer; 0 is the target's.
    own_embedding: whether the head has an embedding of its own, which starts as the target's.
    window: how many of the last positions a row sees, more than D; None is all.
  """

  depth: int = 5
  bias: bool = True
  mlp_width: int = 0
  own_embedding: bool = False
  window: int | None = None


class EagleLayer(nn.Module):
  """z = FC [e; f], with a bias or not, then a layer on z without a norm before its attention."""

  layers: nn.Module
  bias: bool

  @nn.compact
  def __call__(
    self,
    state: Array,
    embedded: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
    earlier: KV | None = None,
  ) -> tuple[Array, KV]:
    """States f [B, N, E] and embeddings e [B, N, E] of the tokens that follow them -> (the next
    states [B, N, E], KV); see `models.layers.Layers` for the rest."""
    E = state.shape[-1]
    x = jnp.concatenate([embedded, state], -1)
    x = linear(x, weight(self, "fc", nn.initializers.normal(0.02), (E, 2 * E)))
    if self.bias:
      x = x + jnp.broadcast_to(self.param("fc_bias", nn.initializers.zeros, (E,)), x.shape)
    return self.layers(x, position, mask, cache, earlier, attention_input=x)[:2]


@functools.cache
def eagle(target: LayeredTarget, config: EagleConfig) -> Attending:
  """A layer that predicts the target's next state from the last one and the token after it.

  Li et al. 2024 (arXiv 2401.15077, section 4): EAGLE-1 on a static tree. On a `Dynamic` tree the
  same weights are EAGLE-2 (arXiv 2406.16858, section 4). States are those after the final norm, so
  the target's LM head reads the guesses; embeddings are the target's too. Below the root the states
  are themselves guesses. EAGLE-1's draws of children are `trees.WithoutReplacement`.

  The layer has the target's heads, biases and rotary embedding, but neither norms on q and k nor
  its sliding window, which the published layer lacks; `window` is the head's own. `loss` trains
  depth 1 only, as published; the published noise on the states, 0.2 * 512 / T wide, is `train.heads
  --noise`.

  EAGLE-2 is `eagle/dynamic-16,depth=5,beam=4`.

  Measured: 4.77 tokens per pass, 2.15x (heads_gsm8k)
  """
  layers = target.make_layers(mlp_width=config.mlp_width, window=config.window, qk_norm=False)
  module = EagleLayer(layers, config.bias)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, target.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, x, x, position, jnp.ones((1, 1, 1), bool))["params"]
    return params | embedding.collection(target, target_params, config.own_embedding)

  def attend(params, target_params, state, following, *rest):
    embedded = embedding.embed(target, target_params, params, following)
    return module.apply({"params": params["params"]}, state, embedded, *rest)

  def memory(params, target_params, features, *rest):
    return attend(params, target_params, features.hidden, *rest)

  loss = LossWeights(hard=0.0, soft=0.1, feature=1.0, decay=0.0)
  read = draft_vocabulary.through(target)
  return Attending(
    "eagle",
    target,
    config.depth,
    init,
    read,
    attend,
    loss=loss,
    memory=memory,
    window=config.window,
  )
