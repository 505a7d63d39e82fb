"""Medusa: parallel heads on the last hidden state, their best guesses arranged as a tree.

Letters: B batch, M rows, D heads, E width, V vocabulary, W draft vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import Drafter, Examples, Head, LossWeights
from specjax.drafters import draft_context, draft_vocabulary
from specjax.models.config import Config
from specjax.models.linear import linear, linear_each
from specjax.models.transformer import target
from specjax.trees.grow import Sampling, Tree, fill, proposal_of, size_of
from specjax.trees.structure import at


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
  """Shape of the heads.

  Attributes:
    depth: D, heads; head d guesses depth d.
    blocks: residual blocks per head.
    shared: True reads all heads out through the target's own LM head (the layout of Medusa's
      legacy trainer) instead of a vocabulary matrix per head.
  """

  depth: int = 4
  blocks: int = 1
  shared: bool = False


class MedusaHeads(nn.Module):
  """z = h + SiLU(W h + b) per block. Blocks start as the identity: W and b are zero."""

  config: MedusaConfig

  @nn.compact
  def __call__(self, hidden: Array) -> Array:
    """[M, E], the target's state after its final norm -> [M, D, E]."""
    c, E = self.config, hidden.shape[-1]
    zeros = nn.initializers.zeros
    z = jnp.repeat(hidden[:, None], c.depth, 1)
    for i in range(c.blocks):
      w = self.param(f"block_{i}", zeros, (c.depth, E, E))
      b = self.param(f"bias_{i}", zeros, (c.depth, E))
      z = z + nn.silu(linear_each(z, w) + b[None])
    return z


@functools.cache
def medusa(model: Config, config: MedusaConfig) -> Head:
  """Heads that each guess one depth from the target's last state, all at once.

  Cai et al. 2024 (arXiv 2401.10774, sections 2.1 and 2.2). Carried between rounds: the state
  [B, E] that predicted the root. Siblings are distinct and chosen without looking at noise, so
  "greedy" and "target_only" are exact; the product of the heads' distributions is not the distribution of a path, so
  no q is offered.

  Args:
    model: the target's network.
    config: shape of the heads.
  """
  D = config.depth
  apply: Callable[..., Array] = MedusaHeads(config).apply  # type: ignore[assignment]
  lm_head = target(model).lm_head

  def init(key, target_params, vocabulary=None):
    params = MedusaHeads(config).init(key, jnp.zeros((1, model.width)))["params"]
    if not config.shared:
      matrix = draft_vocabulary.rows(lm_head(target_params), vocabulary)
      params = params | {"lm_head": jnp.broadcast_to(matrix, (D, *matrix.shape))}
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def blocks(params, hidden: Array) -> Array:
    own = {k: v for k, v in params["params"].items() if k != "lm_head"}
    return apply({"params": own}, hidden)

  def unroll(params, target_params, examples: Examples):
    hidden = draft_context.rows_at(examples.features.hidden, examples.at)
    z = blocks(params, hidden.reshape(-1, hidden.shape[-1]))
    z = z.reshape(*hidden.shape[:2], D, -1)
    return tuple(z[:, :, d] for d in range(D))

  def matrix(params, target_params, d: int) -> Array:
    if config.shared:
      return draft_vocabulary.rows(lm_head(target_params), draft_vocabulary.ids(params))
    return params["params"]["lm_head"][d - 1]

  def read(params, target_params, state, d):
    return linear(state, matrix(params, target_params, d)).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def initial(params, target_params, context, features, capacity):
      return draft_context.before_root(features.hidden, context)

    def propose(params, target_params, hidden, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)
      z = blocks(params, hidden)
      if config.shared:
        logits = linear(z, matrix(params, target_params, 1))
      else:  # one product for all heads
        logits = linear_each(z, params["params"]["lm_head"])
      guesses = [logits[:, d].astype(jnp.float32) for d in range(depth)]
      ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, model.vocab_size)
      return fill(tree, root, guesses, ids, sampling), hidden

    def update(params, target_params, hidden, draft, evaluation, verdict, rows):
      return draft_context.newest(evaluation.features.hidden, verdict, rows, hidden)

    return Drafter("medusa", proposal_of(tree), nodes, depth, initial, propose, update)

  return Head("medusa", D, (), LossWeights(), init, unroll, read, functools.cache(drafter))
