"""Blockwise parallel decoding: one wide feed-forward layer, read out by the target's own LM head.

Letters: B batch, M rows, D heads, E width, F units per head, W draft vocabulary.
"""

import dataclasses
import functools

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
class BlockwiseConfig:
  """Shape of the heads.

  Attributes:
    depth: D, heads; head d guesses depth d.
    hidden: F, units of each head; 0 is the target's width.
  """

  depth: int = 4
  hidden: int = 0


class BlockwiseHeads(nn.Module):
  """z = h + U ReLU(W h + b) + c per head. Heads start as the identity: U and c are zero."""

  config: BlockwiseConfig

  @nn.compact
  def __call__(self, hidden: Array) -> Array:
    """[M, E], the target's state after its final norm -> [M, D, E]."""
    D, E = self.config.depth, hidden.shape[-1]
    F = self.config.hidden or E
    zeros = nn.initializers.zeros
    w = self.param("up", nn.initializers.normal(0.02), (D * F, E))
    b = self.param("up_bias", zeros, (D * F,))
    u = self.param("down", zeros, (D, E, F))
    c = self.param("down_bias", zeros, (D, E))
    z = nn.relu(linear(hidden, w) + b[None]).reshape(-1, D, F)
    return hidden[:, None] + linear_each(z, u) + c[None]


@functools.cache
def blockwise(model: Config, config: BlockwiseConfig) -> Head:
  """Heads that each guess one depth from the target's last state, through one vocabulary matrix.

  Stern, Shazeer and Uszkoreit 2018 (arXiv 1811.03115, sections 3 to 6). The state after the final
  norm goes through one layer of D * F units; each head maps its F units back to the width, adds
  the state and reads with the target's LM head. The paper sends the next token through the layer
  too; here that is the target's own to say, so a frozen target stays what it is. The paper's loss
  picks one head per minibatch at random, of which the mean trained here is the expectation.

  Its draft is a chain; here the heads fill any tree. Scoring and proposing share a pass, as in the
  paper: carried between rounds is the state [B, E] that predicted the root. Siblings are distinct
  and chosen without looking at noise, so "greedy" and "target_only" are exact; there is no q.

  Args:
    model: the target's network.
    config: shape of the heads.
  """
  module, D = BlockwiseHeads(config), config.depth
  lm_head = target(model).lm_head

  def init(key, target_params, vocabulary=None):
    params = module.init(key, jnp.zeros((1, model.width)))["params"]
    return {"params": params} | draft_vocabulary.collection(vocabulary)

  def states(params, hidden):
    return module.apply({"params": params["params"]}, hidden)

  def unroll(params, target_params, examples: Examples):
    hidden = draft_context.rows_at(examples.features.hidden, examples.at)
    z = states(params, hidden.reshape(-1, hidden.shape[-1]))
    z = z.reshape(*hidden.shape[:2], D, -1)
    return tuple(z[:, :, d] for d in range(D))

  def read(params, target_params, state, d):
    matrix = draft_vocabulary.rows(lm_head(target_params), draft_vocabulary.ids(params))
    return linear(state, matrix).astype(jnp.float32)

  def drafter(tree: Tree) -> Drafter:
    nodes, depth = size_of(tree, D)

    def initial(params, target_params, context, features, capacity):
      return draft_context.before_root(features.hidden, context)

    def propose(params, target_params, hidden, context, settings, noise):
      root = at(context.tokens, context.length[:, None] - 1)
      logits = read(params, target_params, states(params, hidden)[:, :depth], 1)  # same for every d
      guesses = [logits[:, d] for d in range(depth)]
      ids, sampling = draft_vocabulary.ids(params), Sampling(settings, noise, model.vocab_size)
      return fill(tree, root, guesses, ids, sampling), hidden

    def update(params, target_params, hidden, draft, evaluation, verdict, rows):
      return draft_context.newest(evaluation.features.hidden, verdict, rows, hidden)

    return Drafter("blockwise", proposal_of(tree), nodes, depth, initial, propose, update)

  return Head(
    "blockwise", D, (), LossWeights(decay=1.0), init, unroll, read, functools.cache(drafter)
  )
