"""Clover: guesses fed back into the state, one small attention per depth.

Letters: B batch, N nodes, D depth, E width, H heads, C head dimension.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import LayeredTarget, Params
from specjax.heads import draft_vocabulary
from specjax.heads.recurrent import Recurrent
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.transformer import RMSNorm

_INIT = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class CloverConfig:
  """Shape of the head.

  Attributes:
    depth: D, attention decoders; decoder d guesses depth d.
    layers: transformer layers of the augmenting block, 1 or more.
  """

  depth: int = 4
  layers: int = 1


class AttentionDecoder(nn.Module):
  """Softmax attention of H heads from a state to a token and to the state itself."""

  heads: int
  head_dim: int
  epsilon: float

  @nn.compact
  def __call__(self, state: Array, token: Array) -> Array:
    """The state after a token, both [B, N, E] -> [B, N, E]."""
    H, C, E = self.heads, self.head_dim, state.shape[-1]
    x = RMSNorm(self.epsilon, name="state_norm")(state)
    y = RMSNorm(self.epsilon, name="token_norm")(token)
    pair = jnp.stack([y, x], 2)  # [B, N, 2, E]
    q = linear(x, weight(self, "q", _INIT, (H * C, E)))
    kv = linear(pair, weight(self, "kv", _INIT, (2 * H * C, E)))
    q = q.reshape(*q.shape[:2], H, C)
    k, v = jnp.split(kv.reshape(*kv.shape[:3], 2 * H, C), 2, axis=3)
    score = jnp.einsum("bnhc,bnphc->bnhp", q, k, preferred_element_type=jnp.float32)
    share = jax.nn.softmax(score * C**-0.5).astype(v.dtype)
    mixed = jnp.einsum("bnhp,bnphc->bnhc", share, v).reshape(*state.shape[:2], H * C)
    return state + linear(mixed, weight(self, "out", nn.initializers.zeros, (E, H * C)))


class CloverNet(nn.Module):
  """The augmenting block and an `AttentionDecoder` for every depth."""

  augment: nn.Module
  depth: int
  heads: int
  head_dim: int
  epsilon: float

  def setup(self):
    self.decoders = [
      AttentionDecoder(self.heads, self.head_dim, self.epsilon, name=f"decoder_{d}")
      for d in range(1, self.depth + 1)
    ]

  def block(self, hidden, position, mask, cache=None):
    """The target's states [B, N, E] -> ([B, N, E], KV)."""
    return self.augment(hidden, position, mask, cache)[:2]

  def step(self, state: Array, token: Array, d: int) -> Array:
    """State d - 1 and the embedding of the token after it, [B, N, E] -> state d (static)."""
    return self.decoders[d - 1](state, token)

  def __call__(self, hidden, position, mask):
    """Runs everything once, for `init`."""
    state, _ = self.block(hidden, position, mask)
    for d in range(1, self.depth + 1):
      state = self.step(state, hidden, d)
    return state


@functools.cache
def clover(target: LayeredTarget, config: CloverConfig) -> Recurrent:
  """Medusa's heads made regressive: guess d is conditioned on the tokens before it.

  Xiao et al. 2024 (arXiv 2405.00263). The augmenting block, transformer layers over the target's
  states, gives s_0 at the state that predicted the root. Then s_d = s_{d-1} + attention from
  s_{d-1} to (x_{t+d}, s_{d-1}), where x_{t+1} is the root, and the target's LM head reads s_d.
  `trees.Dynamic` is its tree, as small as four nodes for large batches.

  There is no public code. The paper describes the three parts, how they are connected, and how the
  tree is cut; the rest is inferred. Here
  - states are those after the target's final norm, and no norm follows, as in Medusa;
  - a decoder has H heads and no MLP; keys and values come from the token's embedding by the target
    and from the running state, each behind a norm; positions are not used;
  - every depth has its own decoder, and the target's LM head reads them all;
  - decoders and layers add nothing at the start: every guess is the target's own distribution;
  - the loss is cross-entropy with the text, depths weighted as in Medusa;
  - the tree has a fixed number of nodes, those of the largest joint probability, without the
    authors' cuts by top-p and by a quarter of the best sibling's probability.

  Measured: 4.52 tokens per pass, 2.11x (heads_gsm8k)
  """
  D = config.depth
  layers = target.make_layers(config.layers, window=False)
  module = CloverNet(layers, D, target.heads, target.head_dim, target.norm_epsilon)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, target.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, x, position, jnp.ones((1, 1, 1), bool))["params"]
    silent = {
      name: layer | {last: jnp.zeros_like(layer[last]) for last in ("out", "down")}
      for name, layer in params["augment"].items()
    }
    return params | {"augment": silent}

  def apply(params, *arguments, method: str):
    return module.apply({"params": params["params"]}, *arguments, method=method)

  def memory(params, target_params, features, following, *rest):
    return apply(params, features.hidden, *rest, method="block")

  def step(params, target_params, state, tokens, d):
    state = apply(params, state, target.embed(target_params, tokens), d, method="step")
    return state, state

  read = draft_vocabulary.through(target)
  return Recurrent("clover", target, D, init, read, step, memory=memory)
