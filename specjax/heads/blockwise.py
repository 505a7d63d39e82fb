"""Blockwise parallel decoding: one wide feed-forward layer before the target's LM head.

Letters: M rows, D heads, E width, F units per head.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import Params, StatesTarget
from specjax.heads import draft_vocabulary
from specjax.heads.base import LossWeights
from specjax.heads.parallel import Parallel
from specjax.models.linear import linear, linear_each
from specjax.models.lora import weight
from specjax.models.weights import dense


@dataclasses.dataclass(frozen=True)
class BlockwiseConfig:
  """Shape of the heads.

  Attributes:
    depth: D, heads; head d guesses depth d.
    hidden: F, units of each head; 0 means E.
  """

  depth: int = 4
  hidden: int = 0


class BlockwiseHeads(nn.Module):
  """z = h + U ReLU(W h + b) + c per head; U and c start at zero."""

  config: BlockwiseConfig

  @nn.compact
  def __call__(self, hidden: Array) -> Array:
    """[M, E], the target's state after its final norm -> [M, D, E]."""
    D, E = self.config.depth, hidden.shape[-1]
    F = self.config.hidden or E
    zeros = nn.initializers.zeros
    w = weight(self, "up", nn.initializers.normal(0.02), (D * F, E))
    b = self.param("up_bias", zeros, (D * F,))
    u = self.param("down", zeros, (D, E, F))
    c = self.param("down_bias", zeros, (D, E))
    z = nn.relu(linear(hidden, w) + b[None]).reshape(-1, D, F)
    return hidden[:, None] + linear_each(z, u) + dense(c)[None]


@functools.cache
def blockwise(target: StatesTarget, config: BlockwiseConfig) -> Parallel:
  """Heads as Medusa's, through one shared layer and vocabulary matrix.

  Stern, Shazeer and Uszkoreit 2018 (arXiv 1811.03115, sections 3 to 6). The state after the final
  norm goes through one layer of D * F units; each head maps its F units back to the width, adds the
  state and reads logits with the target's LM head. The paper sends the next token through the layer
  too; here the frozen target predicts it. The paper's loss picks one head per minibatch at random,
  of which the mean trained here is the expectation. Its draft is a chain; here heads fill any tree.

  Measured: 2.99 tokens per pass, 1.74x (heads_gsm8k)
  """
  module, D = BlockwiseHeads(config), config.depth

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    return module.init(key, jnp.zeros((1, target.width)))["params"]

  def states(params, target_params, last):
    z = module.apply({"params": params["params"]}, last.reshape(-1, target.width))
    return z.reshape(*last.shape[:2], D, -1)

  read, loss = draft_vocabulary.through(target), LossWeights(decay=1.0)
  return Parallel("blockwise", target, D, init, read, states, loss=loss)
