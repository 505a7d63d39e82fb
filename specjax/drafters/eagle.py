"""EAGLE: one layer that continues the target's own states, token by token.

Letters: B batch, T row length, M cut points, N rows, W nodes of one level, E width, D depth.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Drafter, Examples, Head, LossWeights
from specjax.drafters import draft_context, draft_recursion, draft_vocabulary
from specjax.models.config import Config
from specjax.models.linear import linear
from specjax.models.transformer import Layers, attention_mask, target
from specjax.trees.grow import Sampling, Tree, grow, proposal_of, size_of
from specjax.trees.structure import at


@dataclasses.dataclass(frozen=True)
class EagleConfig:
  """Shape of the head.

  Attributes:
    depth: D, how far ahead it may guess.
    bias: of the projection before the layer.
    mlp_width: of the layer; 0 is the target's.
  """

  depth: int = 5
  bias: bool = True
  mlp_width: int = 0


class EagleLayer(nn.Module):
  """z = FC [e; f], then a block on z that attends from z as it is, without a norm.

  Attributes:
    config: of the block, one layer.
    bias: of FC.
  """

  config: Config
  bias: bool

  @nn.compact
  def __call__(
    self, state: Array, embedded: Array, position: Array, mask: Array,
    cache: Cache | None = None, earlier: KV | None = None,
  ) -> tuple[Array, KV]:  # fmt: skip
    """States f [B, N, E] and embeddings e [B, N, E] of the tokens that follow; rest: see `Layers`.

    Returns:
      (the next states [B, N, E], KV).
    """
    E = self.config.width
    x = jnp.concatenate([embedded, state], -1)
    x = linear(x, self.param("fc", nn.initializers.normal(0.02), (E, 2 * E)))
    if self.bias:
      x = x + jnp.broadcast_to(self.param("fc_bias", nn.initializers.zeros, (E,)), x.shape)
    layers = Layers(self.config, name="layers")
    return layers(x, position, mask, cache, earlier, attention_input=x)[:2]


@functools.cache
def eagle(model: Config, config: EagleConfig) -> Head:
  """A layer that predicts the target's next state from the last one and the token that followed it.

  Li et al. 2024 (arXiv 2401.15077, section 4): EAGLE-1 on a static tree. On a `Dynamic` tree the
  same weights are EAGLE-2 (arXiv 2406.16858, section 4). States are those after the final norm, so
  the target's own LM head reads the guesses; embeddings are the target's too. Where a state is not
  known, its guess takes its place.

  Carried between rounds: `draft_context.TextLayers`, the layer's cache over true states and its newest
  output; what was drafted from guesses is dropped. Children are distinct and chosen without
  looking at noise, so "greedy" and "target_only" are exact; EAGLE-1's draws of children without
  replacement are not offered.

  The layer has the target's heads, biases and rotary embedding, but neither norms on q and k nor a
  sliding window, which the published layer lacks. `loss` trains depth 1 only, as published.

  Args:
    model: the target's network.
    config: shape of the head.
  """
  layer = dataclasses.replace(
    model, layers=1, mlp_width=config.mlp_width or model.mlp_width, qk_norm=False, window=None
  )
  module, network, D = EagleLayer(layer, config.bias), target(model), config.depth

  def init(key, target_params, vocabulary=None):
    x, position = jnp.zeros((1, 1, model.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, x, x, position, jnp.ones((1, 1, 1), bool))["params"]
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def bind(params, target_params):
    """(state, following token ids, position, mask, cache, earlier) -> (next state, KV)."""

    def run(state, following, position, mask, cache=None, earlier=None):
      embedded = network.embed(target_params, following)
      own = {"params": params["params"]}
      return module.apply(own, state, embedded, position, mask, cache, earlier)

    return run

  def on_true_states(params, target_params):
    run = bind(params, target_params)
    return lambda features, *rest: run(features.hidden, *rest)

  def unroll(params, target_params, examples: Examples):
    run = bind(params, target_params)
    following = jnp.pad(examples.tokens[:, 1:], ((0, 0), (0, 1)))
    mask = attention_mask(examples.segment, causal=True)
    output, kv = run(examples.features.hidden, following, examples.position, mask)
    return draft_recursion.unroll(run, output, kv, examples, mask, D)

  def matrix(params, target_params) -> Array:
    return draft_vocabulary.rows(network.lm_head(target_params), draft_vocabulary.ids(params))

  def read(params, target_params, state, d):
    return linear(state, matrix(params, target_params)).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def initial(params, target_params, context, features, capacity):
      run = on_true_states(params, target_params)
      return draft_context.remember(run, context, features, capacity)

    def propose(params, target_params, memory, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)
      step = draft_recursion.step_from(
        bind(params, target_params), memory, lambda state: read(params, target_params, state, 1)
      )
      ids = draft_vocabulary.ids(params)
      sampling = Sampling(settings, noise, model.vocab_size)
      return grow(tree, root, step, memory.last[:, None], None, ids, sampling), memory

    def update(params, target_params, memory, draft, evaluation, verdict, rows):
      run = on_true_states(params, target_params)
      return draft_context.extend(run, memory, evaluation, verdict, rows)

    return Drafter("eagle", proposal_of(tree), nodes, depth, initial, propose, update)

  loss = LossWeights(hard=0.0, soft=0.1, feature=1.0, decay=0.0)
  return Head("eagle", D, (), loss, init, unroll, read, functools.cache(drafter))
