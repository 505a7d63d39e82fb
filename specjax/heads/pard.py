"""PARD: a small language model whose masks after the root say all later tokens in one pass.

Letters: B batch, N rows of a text, M roots, A = D - 1 masks of a root, E width, D depth.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import blocks, draft_vocabulary
from specjax.heads.base import LossWeights
from specjax.heads.masked_block import MaskedBlock
from specjax.models.norm import RMSNorm


@dataclasses.dataclass(frozen=True)
class PARDConfig:
  """Shape of the head.

  Attributes:
    depth: D; the root says depth 1, mask d - 1 after it depth d.
    layers: transformer layers of the language model, 1 or more.
  """

  depth: int = 5
  layers: int = 2


class PARDModel(nn.Module):
  """Layers over embeddings of the text and of masks, and a norm."""

  layers: nn.Module
  width: int
  epsilon: float

  def setup(self):
    self.norm = RMSNorm(self.epsilon)
    self.mask = self.param("mask", nn.initializers.normal(0.02), (self.width,))

  def __call__(
    self,
    x: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
    earlier: KV | None = None,
  ) -> tuple[Array, KV]:
    """Embeddings [B, N, E] -> (states [B, N, E], KV); see `models.layers.Layers`."""
    x, kv, *_ = self.layers(x, position, mask, cache, earlier)
    return self.norm(x), kv

  def masks(self, rows: int, like: Array, *rest) -> Array:
    """The states [B, M, A, E] of A `rows` of masks after each of the roots [B, M, E]."""
    B, M, E = like.shape
    x = jnp.broadcast_to(self.mask.astype(like.dtype), (B, M * rows, E))
    return self(x, *rest)[0].reshape(B, M, rows, E)


@functools.cache
def pard(target: LayeredTarget, config: PARDConfig) -> MaskedBlock:
  """A draft model that guesses D tokens in one pass: the root and D - 1 masks after it.

  An et al. 2025 (arXiv 2504.18583). The model reads tokens alone, none of the target's states, and
  one mask stands at every depth. A mask sees the text but for its first token, the root, and the
  masks before it. The text's rows are run from true tokens once these are accepted, so masks leave
  no trace. The loss is cross-entropy with the text, of which all depths weigh the same.

  The published draft models are small models of the target's family that are trained on, as in
  `drafters.models.masks`. Here the
  layers are new ones of the target's shape, between its embedding, the final norm, which starts as
  the target's, and its LM head. The published training drops deep masks at most positions, which
  makes it three times as cheap; here masks follow the drafting positions alone (`train.heads
  --points`), which are random in each step, and the text is run once for all of them. Accepted
  tokens and masks are two passes of a round, not one.

  Measured: 2.55 tokens per pass (heads_short)
  """
  E, D = target.width, config.depth
  module = PARDModel(target.make_layers(config.layers, window=False), E, target.norm_epsilon)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
    mask = jnp.ones((1, 1, 1), bool)
    params = module.init(key, 1, x, position, mask, method="masks")["params"]
    norm = jax.tree.map(jnp.array, target.last_layer(target_params)[1])  # a buffer of its own
    return params | {"norm": norm}

  def memory(params, target_params, features, following, position, mask, cache=None):
    own, x = {"params": params["params"]}, target.embed(target_params, following)
    return module.apply(own, x, position + 1, mask, cache)

  def block(params, target_params, last, position, sees=None, cache=None, earlier=None):
    if D == 1:
      return last[:, :, None]
    own = {"params": params["params"]}
    place, mask = blocks.laid_out(position, 2, D - 1, sees, causal=True)
    later = module.apply(own, D - 1, last, place, mask, cache, earlier, method="masks")
    return jnp.concatenate([last[:, :, None], later], 2)

  read, loss = draft_vocabulary.through(target), LossWeights(decay=1.0)
  return MaskedBlock("pard", target, D, init, read, block, loss=loss, memory=memory)
