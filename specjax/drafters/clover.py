"""Clover: guesses fed back into the state, one small attention per depth.

Letters: B batch, T row length, N nodes, M cut points, D depth, E width, H heads, C head dimension,
V vocabulary, W draft vocabulary.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Drafter, Examples, Head, LossWeights
from specjax.drafters import draft_context, draft_vocabulary
from specjax.models.config import Config
from specjax.models.linear import linear
from specjax.models.transformer import Layers, RMSNorm, attention_mask, target
from specjax.trees.grow import Sampling, Tree, grow, proposal_of, size_of
from specjax.trees.structure import at

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
  """Softmax attention of H heads from a state to two things: a token, and the state itself."""

  config: Config

  @nn.compact
  def __call__(self, state: Array, token: Array) -> Array:
    """The state after a token, both [B, N, E] -> [B, N, E]."""
    c = self.config
    x = RMSNorm(c.norm_epsilon, name="state_norm")(state)
    y = RMSNorm(c.norm_epsilon, name="token_norm")(token)
    pair = jnp.stack([y, x], 2)  # [B, N, 2, E]
    size = c.heads * c.head_dim
    q = linear(x, self.param("q", _INIT, (size, c.width)))
    kv = linear(pair, self.param("kv", _INIT, (2 * size, c.width)))
    q = q.reshape(*q.shape[:2], c.heads, c.head_dim)
    k, v = jnp.split(kv.reshape(*kv.shape[:3], 2 * c.heads, c.head_dim), 2, axis=3)
    score = jnp.einsum("bnhc,bnphc->bnhp", q, k, preferred_element_type=jnp.float32)
    weight = jax.nn.softmax(score * c.head_dim**-0.5).astype(v.dtype)
    mixed = jnp.einsum("bnhp,bnphc->bnhc", weight, v).reshape(*state.shape[:2], size)
    return state + linear(mixed, self.param("out", nn.initializers.zeros, (c.width, size)))


class CloverNet(nn.Module):
  """The augmenting block and the decoders."""

  config: Config  # the target's, with the augmenting block's number of layers
  depth: int

  def setup(self):
    self.augment = Layers(self.config)
    self.decoders = [
      AttentionDecoder(self.config, name=f"decoder_{d}") for d in range(1, self.depth + 1)
    ]

  def block(self, hidden, position, mask, cache=None):
    """The augmenting block over the target's states [B, N, E]: ([B, N, E], KV)."""
    return self.augment(hidden, position, mask, cache)[:2]

  def step(self, state: Array, token: Array, d: int) -> Array:
    """State d - 1 and the vector of the token after it, [B, N, E] -> state d (d static)."""
    return self.decoders[d - 1](state, token)

  def __call__(self, hidden, position, mask):
    """Runs everything once, for `init`."""
    state, _ = self.block(hidden, position, mask)
    for d in range(1, self.depth + 1):
      state = self.step(state, hidden, d)
    return state


@functools.cache
def clover(model: Config, config: CloverConfig) -> Head:
  """Medusa's heads made regressive: guess d is conditioned on the tokens before it.

  Xiao et al. 2024 (arXiv 2405.00263). The augmenting block, transformer layers over the target's
  states, gives s_0 at the state that predicted the root. Then s_d = s_{d-1} + attention from
  s_{d-1} to (x_{t+d}, s_{d-1}), and the target's LM head reads s_d. The token fed back at depth 1
  is the root. `trees.grow.Dynamic` is its tree, as small as four nodes for large batches.

  There is no public code. Its authors describe the three parts and what they connect, and the cuts
  of the tree; all else is inferred. Here
  - states are those after the target's final norm, and no norm follows, as in Medusa;
  - a decoder has H heads and no MLP; keys and values come from the token's vector in the target's
    embedding and from the running state, each behind a norm; positions play no part;
  - every depth has its own decoder, and all are read through the target's LM head;
  - decoders and layers add nothing at the start, so that every guess is the target's own distribution;
  - the loss is cross-entropy with the text, depths weighted as in Medusa;
  - the tree is of a fixed number of nodes, those of the largest joint probability, without the
    authors' cuts by top-p and by a quarter of the best sibling's probability.

  Carried between rounds: `TextLayers`, the block's keys and values and s_0 [B, E]. Siblings are
  distinct and chosen without looking at noise, so "greedy" and "target_only" are exact; no q is
  offered.

  Args:
    model: the target's network.
    config: shape of the head.
  """
  D = config.depth
  module = CloverNet(dataclasses.replace(model, layers=config.layers, window=None), D)
  embed, lm_head = target(model).embed, target(model).lm_head

  def init(key, target_params, vocabulary=None):
    x, position = jnp.zeros((1, 1, model.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, x, position, jnp.ones((1, 1, 1), bool))["params"]
    silent = {
      name: layer | {last: jnp.zeros_like(layer[last]) for last in ("out", "down")}
      for name, layer in params["augment"].items()
    }
    return {"params": params | {"augment": silent}} | draft_vocabulary.collection(vocabulary)

  def apply(params, *arguments, method: str):
    return module.apply({"params": params["params"]}, *arguments, method=method)

  def unroll(params, target_params, examples: Examples):
    mask = attention_mask(examples.segment, causal=True)
    block, _ = apply(params, examples.features.hidden, examples.position, mask, method="block")
    states = [draft_context.rows_at(block, examples.at)]
    for d in range(1, D + 1):
      token = embed(target_params, draft_context.token_at(examples, d))
      states.append(apply(params, states[-1], token, d, method="step"))
    return tuple(states[1:])

  def read(params, target_params, state, d):
    matrix = draft_vocabulary.rows(lm_head(target_params), draft_vocabulary.ids(params))
    return linear(state, matrix).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def run_with(params):
      def run(features, following, position, mask, cache):
        return apply(params, features.hidden, position, mask, cache, method="block")

      return run

    def initial(params, target_params, context, features, capacity):
      return draft_context.remember(run_with(params), context, features, capacity)

    def propose(params, target_params, memory, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)

      def step(level, tokens, state, rows, mask):
        state = apply(params, state, embed(target_params, tokens), level + 1, method="step")
        return read(params, target_params, state, level + 1), state, rows

      ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, model.vocab_size)
      return grow(tree, root, step, memory.last[:, None], (), ids, sampling), memory

    def update(params, target_params, memory, draft, evaluation, verdict, rows):
      return draft_context.extend(run_with(params), memory, evaluation, verdict, rows)

    return Drafter("clover", proposal_of(tree), nodes, depth, initial, propose, update)

  return Head("clover", D, (), LossWeights(), init, unroll, read, functools.cache(drafter))
