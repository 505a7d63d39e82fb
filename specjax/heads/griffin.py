"""GRIFFIN: a layer whose input is corrected by the token, and which says tokens and states apart.

Letters: B batch, N rows, E width, F units, D depth.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import draft_vocabulary
from specjax.heads.attending import Attending
from specjax.heads.base import LossWeights
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm
from specjax.models.weights import Matrix

_INIT = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class GriffinConfig:
  """Shape of the head.

  Attributes:
    depth: D, how far ahead it may guess.
    mlp_width: F, of the layer and of the fusion; 0 is 3E.
  """

  depth: int = 5
  mlp_width: int = 0


class GriffinLayer(nn.Module):
  """z = FC [e; f], corrected by U SiLU(V [norm z; norm e]), then attention from z as it is, and a
  gated MLP behind a norm, of which each half of the output is added to the stream."""

  attention: nn.Module
  units: int
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
    """States f and embeddings e of the tokens that follow them, [B, N, E] -> ([B, N, 2E], what the
    LM head reads and then the next states, KV); see `models.layers.Layers` for the rest."""
    E, F = state.shape[-1], self.units

    def normed(y: Array, name: str) -> Array:
      return RMSNorm(self.epsilon, name=f"{name}_norm")(y)

    def matrix(name: str, rows: int, columns: int) -> Matrix:
      return weight(self, name, _INIT, (rows, columns))

    x = linear(jnp.concatenate([embedded, state], -1), matrix("fc", E, 2 * E))
    x = x + jnp.broadcast_to(self.param("fc_bias", nn.initializers.zeros, (E,)), x.shape)
    both = jnp.concatenate([normed(x, "fused"), normed(embedded, "token")], -1)
    x = x + linear(nn.silu(linear(both, matrix("fuse_up", F, 2 * E))), matrix("fuse_down", E, F))
    x, kv, *_ = self.attention(x, position, mask, cache, earlier, attention_input=x)
    gate, up = jnp.split(linear(normed(x, "mlp"), matrix("gate_up", 2 * F, E)), 2, -1)
    y = linear(nn.silu(gate) * up, matrix("down", 2 * E, F))
    return jnp.concatenate([x, x], -1) + y, kv


@functools.cache
def griffin(target: LayeredTarget, config: GriffinConfig) -> Attending:
  """EAGLE's layer, which corrects its input by the token and gives tokens and states apart.

  Hu et al. 2025 (arXiv 2502.11018), as in the released code. The first half of the layer's output
  is read by the target's LM head; the second is the guess at the target's state after its final
  norm, from which the head goes on. The input is fused twice, since a guessed state strays from the
  token that was drafted after it.

  The loss is EAGLE's at every depth, all weighing the same, on the head's own states. A depth
  learns only where the text's tokens at all depths before it were among the three best guesses:
  the token-alignable mask. The paper trains depth after depth, each from the run before, and adds
  the cross-entropy over the target's ten best tokens from depth 2 on. Here all depths are trained
  together without that term. The release norms z twice where the second norm changes nothing but
  the weights, so one is left here.

  Measured: 4.02 tokens per pass (heads_short)
  """
  E = target.width
  attention = target.make_layers(mlp=False, window=False, qk_norm=False)
  module = GriffinLayer(attention, config.mlp_width or 3 * E, target.norm_epsilon)
  through_target = draft_vocabulary.through(target)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
    return module.init(key, x, x, position, jnp.ones((1, 1, 1), bool))["params"]

  def run(params, target_params, state, following, *rest):
    embedded = target.embed(target_params, following)
    return module.apply({"params": params["params"]}, state, embedded, *rest)

  def memory(params, target_params, features, *rest):
    return run(params, target_params, features.hidden, *rest)

  def feature(state: Array, d: int) -> Array:
    return state[..., E:]

  def attend(params, target_params, states, *rest):
    return run(params, target_params, states[..., E:], *rest)

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    return through_target(params, target_params, state[..., :E], d)

  loss = LossWeights(hard=0.0, soft=0.1, feature=1.0, decay=1.0, within=3)
  return Attending(
    "griffin", target, config.depth, init, read, attend, loss=loss, memory=memory, feature=feature
  )
