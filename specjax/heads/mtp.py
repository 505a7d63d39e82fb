"""MTP: the module with which published models predict one more token, used again for every depth.

Letters: B batch, N rows, E width, D depth.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import draft_vocabulary
from specjax.heads.attending import Attending
from specjax.heads.base import LossWeights
from specjax.models.linear import linear
from specjax.models.norm import RMSNorm


@dataclasses.dataclass(frozen=True)
class MTPConfig:
  """Shape of the head.

  Attributes:
    depth: D, how often the module may be used in a row.
    before_norm: whether the text's states are the target's before its final norm, as in MiMo.
  """

  depth: int = 4
  before_norm: bool = False


class MTPModule(nn.Module):
  """z = P [norm e; norm h], a whole transformer layer on z, and a norm."""

  layers: nn.Module
  epsilon: float

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
    """States h and embeddings e of the tokens that follow them, [B, N, E] -> (the next states
    [B, N, E], KV); see `models.layers.Layers` for the rest."""
    E = state.shape[-1]
    token = RMSNorm(self.epsilon, name="token_norm")(embedded)
    x = jnp.concatenate([token, RMSNorm(self.epsilon, name="state_norm")(state)], -1)
    x = linear(x, self.param("projection", nn.initializers.normal(0.02), (E, 2 * E)))
    x, kv, *_ = self.layers(x, position, mask, cache, earlier)
    return RMSNorm(self.epsilon, name="norm")(x), kv


@functools.cache
def mtp(target: LayeredTarget, config: MTPConfig) -> Attending:
  """A layer on the last state and the token after it, each after a norm of its own.

  DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437, section 2.2), where module d predicts depth d and
  is trained with the model. Published models carry one module, which vLLM and SGLang use again on
  its own states for depths 2 to D; so it is trained here, on a frozen target. Its keys are those of
  the text, then those of its own guesses. Embeddings and the LM head are the target's; the norm
  before the LM head is the module's and starts as the target's final norm.

  States are those after the final norms, as in Qwen3-Next; the norm that reads them again undoes
  all but their weights. MiMo's layer reads the text's before the target's. Depths weigh
  0.6 ** (d - 1) in the loss, cross-entropy with the text, as in FastMTP (Tencent 2025); D = 1 is
  DeepSeek's. The layer lacks the target's sliding window.

  `mtp-2[path/to/model]` is the layer in the target's own checkpoint.

  Measured: 4.28 tokens per pass (heads_short)
  """
  module = MTPModule(target.make_layers(window=False), target.norm_epsilon)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, target.width)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, x, x, position, jnp.ones((1, 1, 1), bool))["params"]
    norm = jax.tree.map(jnp.array, target.last_layer(target_params)[1])  # a buffer of its own
    return params | {"norm": norm}

  def attend(params, target_params, state, following, *rest):
    embedded = target.embed(target_params, following)
    return module.apply({"params": params["params"]}, state, embedded, *rest)

  def memory(params, target_params, features, *rest):
    state = features.hidden_layers[0] if config.before_norm else features.hidden
    return attend(params, target_params, state, *rest)

  loss, read = LossWeights(decay=0.6), draft_vocabulary.through(target)
  hidden_layers = (target.layers,) if config.before_norm else ()
  return Attending(
    "mtp",
    target,
    config.depth,
    init,
    read,
    attend,
    loss=loss,
    memory=memory,
    hidden_layers=hidden_layers,
  )
