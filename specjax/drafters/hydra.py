"""Hydra: Medusa's heads, each told the tokens that were guessed before it.

Letters: B batch, M cut points, N rows, W nodes of one level, D heads, E width, V vocabulary.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Drafter, Examples, Head, LossWeights
from specjax.drafters import draft_context, draft_vocabulary
from specjax.models.config import Config
from specjax.models.linear import linear
from specjax.models.transformer import Layers, RMSNorm, attention_mask, target
from specjax.trees.grow import Sampling, Tree, grow, proposal_of, size_of
from specjax.trees.structure import at

_UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=-2)


@dataclasses.dataclass(frozen=True)
class HydraConfig:
  """Shape of the heads; Hydra++ is `HydraConfig(blocks=4, prefix=True)`.

  Attributes:
    depth: D, heads; head d guesses depth d.
    blocks: residual blocks per head.
    prefix: True reads the target's states through an attention layer of the heads' own (Hydra++).
    shared: True reads all heads out through the target's LM head instead of one, with a bias, per
      head.
    tied_blocks: the blocks of a head after its first share their weights, as in the published
      heads.
  """

  depth: int = 4
  blocks: int = 1
  prefix: bool = False
  shared: bool = False
  tied_blocks: bool = True


class HydraHead(nn.Module):
  """y = R u + SiLU(A u), then y + SiLU(A' y) per further block; every A is zero at the start."""

  config: HydraConfig
  width: int

  @nn.compact
  def __call__(self, u: Array) -> Array:
    """A state and d embeddings side by side [..., (d + 1) * E] -> [..., E]."""

    zeros = nn.initializers.zeros

    def affine(weight: str, bias: str, fan_in: int, init=zeros):
      w, b = self.param(weight, init, (self.width, fan_in)), self.param(bias, zeros, (self.width,))
      return lambda x: linear(x, w) + jnp.broadcast_to(b, (*x.shape[:-1], self.width))

    y = affine("residual", "residual_bias", u.shape[-1], _UNIFORM)(u)
    y = y + nn.silu(affine("block_0", "bias_0", u.shape[-1])(u))
    for i in range(1, self.config.blocks):
      if i == 1 or not self.config.tied_blocks:
        block = affine(f"block_{i}", f"bias_{i}", self.width)
      y = y + nn.silu(block(y))
    return y


class PrefixLayer(nn.Module):
  """One layer over the target's states, and a norm."""

  config: Config

  @nn.compact
  def __call__(
    self, hidden: Array, position: Array, mask: Array, cache: Cache | None = None
  ) -> tuple[Array, KV]:
    """hidden [B, N, E] -> ([B, N, E], KV); see `Layers` for the rest."""
    x, kv, _ = Layers(self.config, name="layers")(hidden, position, mask, cache)
    return RMSNorm(self.config.norm_epsilon, name="norm")(x), kv


@functools.cache
def hydra(model: Config, config: HydraConfig) -> Head:
  """Heads of which number d sees the target's last state, the root and the d - 1 guesses after it.

  Ankner et al. 2024 (arXiv 2402.05109), as in the code that came with it. States are those after
  the target's final norm; embeddings are the target's. Plain Hydra learns the text, Hydra++
  (`prefix`) the target's distribution; depths weigh the same.

  Carried between rounds: the state [B, E] that predicted the root; with `prefix`
  `draft_context.TextLayers`, the layer's cache over true states and its newest output. Siblings are
  distinct and chosen without looking at noise, so "greedy" and "target_only" are exact; no q is
  offered. Dropout and noise on the inputs, which the authors train with, are left out.

  Args:
    model: the target's network.
    config: shape of the heads.
  """
  D, E, network = config.depth, model.width, target(model)
  head = HydraHead(config, E)
  layer = PrefixLayer(dataclasses.replace(model, layers=1))

  def init(key, target_params, vocabulary=None):
    keys = jax.random.split(key, D + 1)
    params = {}
    for d in range(1, D + 1):
      own = head.init(keys[d], jnp.zeros((1, (d + 1) * E)))["params"]
      if not config.shared:
        matrix = draft_vocabulary.rows(network.lm_head(target_params), vocabulary)
        bias = jnp.zeros(matrix.shape[0], matrix.dtype)
        own = own | {"lm_head": jnp.array(matrix), "lm_bias": bias}  # not the target's own buffer
      params[f"head_{d}"] = own
    if config.prefix:
      x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
      params["prefix"] = layer.init(keys[0], x, position, jnp.ones((1, 1, 1), bool))["params"]
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def prefix_run(params):
    own = {"params": params["params"]["prefix"]}
    return lambda features, following, *rest: layer.apply(own, features.hidden, *rest)

  def guess(params, target_params, known: Array, tokens: Array, d: int):
    """What the heads know, [B, W, d * E], and a token more -> (known, state of head d)."""
    known = jnp.concatenate([known, network.embed(target_params, tokens)], -1)
    return known, head.apply({"params": params["params"][f"head_{d}"]}, known)

  def unroll(params, target_params, examples: Examples):
    states = examples.features.hidden
    if config.prefix:
      mask = attention_mask(examples.segment, causal=True)
      run = prefix_run(params)
      states, _ = run(examples.features, examples.tokens, examples.position, mask)
    known, guesses = draft_context.rows_at(states, examples.at), []
    for d in range(1, D + 1):
      token = draft_context.token_at(examples, d)
      known, z = guess(params, target_params, known, token, d)
      guesses.append(z)
    return tuple(guesses)

  def read(params, target_params, state, d):
    if config.shared:
      matrix = network.lm_head(target_params)
      matrix = draft_vocabulary.rows(matrix, draft_vocabulary.ids(params))
      return linear(state, matrix).astype(jnp.float32)
    own = params["params"][f"head_{d}"]
    logits = linear(state, own["lm_head"])
    return (logits + jnp.broadcast_to(own["lm_bias"], logits.shape)).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def initial(params, target_params, context, features, capacity):
      if config.prefix:
        return draft_context.remember(prefix_run(params), context, features, capacity)
      return draft_context.before_root(features.hidden, context)

    def propose(params, target_params, state, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)

      def step(level, tokens, known, memory, mask):
        known, z = guess(params, target_params, known, tokens, level + 1)
        return read(params, target_params, z, level + 1), known, memory

      hidden = state.last if config.prefix else state
      ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, model.vocab_size)
      return grow(tree, root, step, hidden[:, None], (), ids, sampling), state

    def update(params, target_params, state, draft, evaluation, verdict, rows):
      if config.prefix:
        return draft_context.extend(prefix_run(params), state, evaluation, verdict, rows)
      return draft_context.newest(evaluation.features.hidden, verdict, rows, state)

    return Drafter("hydra", proposal_of(tree), nodes, depth, initial, propose, update)

  loss = LossWeights(hard=0.0, soft=1.0, decay=1.0) if config.prefix else LossWeights(decay=1.0)
  return Head("hydra", D, (), loss, init, unroll, read, functools.cache(drafter))
