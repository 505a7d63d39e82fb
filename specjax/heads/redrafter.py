"""ReDrafter: a recurrent network beside the target's state.

Letters: B batch, W nodes of one level, D depth, E width.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params, StatesTarget
from specjax.heads.base import LossWeights
from specjax.heads.recurrent import Recurrent
from specjax.models.linear import linear
from specjax.models.lora import weight

_UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=-2)


@dataclasses.dataclass(frozen=True)
class ReDrafterConfig:
  """Shape of the head.

  Attributes:
    depth: D, how far ahead it guesses.
    blocks: residual blocks before the vocabulary matrix.
    rnn: False adds the embeddings up instead.
  """

  depth: int = 4
  blocks: int = 2
  rnn: bool = True


class ReDrafterNet(nn.Module):
  """s = SiLU(W e + U s' + b) over embeddings e, and z + SiLU(A z + a) per block on z = [c; s]."""

  config: ReDrafterConfig
  width: int

  def setup(self):
    E, zeros = self.width, nn.initializers.zeros
    if self.config.rnn:
      self.rnn_w = weight(self, "rnn_w", _UNIFORM, (E, E))
      self.rnn_u = weight(self, "rnn_u", _UNIFORM, (E, E))
      self.rnn_bias = self.param("rnn_bias", zeros, (E,))
    self.blocks = [
      (
        weight(self, f"block_{i}", _UNIFORM, (2 * E, 2 * E)),
        self.param(f"bias_{i}", zeros, (2 * E,)),
      )
      for i in range(self.config.blocks)
    ]

  def step(self, state: Array, embedded: Array) -> Array:
    """Both [B, W, E] -> [B, W, E]."""
    if not self.config.rnn:
      return state + embedded
    bias = jnp.broadcast_to(self.rnn_bias, state.shape)
    return nn.silu(linear(embedded, self.rnn_w) + linear(state, self.rnn_u) + bias)

  def mix(self, hidden: Array, state: Array) -> Array:
    """The target's state c and the recurrent one, both [B, W, E] -> [B, W, 2E]."""
    z = jnp.concatenate([hidden, state], -1)
    for w, bias in self.blocks:
      z = z + nn.silu(linear(z, w) + jnp.broadcast_to(bias, z.shape))
    return z


@functools.cache
def redrafter(target: StatesTarget, config: ReDrafterConfig) -> Recurrent:
  """A recurrent state over the root and the guesses, read beside the target's last state.

  Zhang et al. 2024 (arXiv 2403.09919), as in Apple's ml-recurrent-drafter. The recurrence starts
  from zero at the root; c, the target's state after its final norm, stays the same for a round;
  embeddings are the target's, the vocabulary matrix is the head's own. Depths weigh the same in
  the loss, cross-entropy with the text. The paper's tree is a `trees.Beam`. The authors'
  acceptance of beams by p / q is not exact and not offered.

  Measured: 3.72 tokens per pass, 1.81x (heads_gsm8k)
  """
  D, E = config.depth, target.width
  module = ReDrafterNet(config, E)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    one, two = jax.random.split(key)
    params = module.init(one, jnp.zeros((1, 1, E)), jnp.zeros((1, 1, E)), method="mix")["params"]
    rows = target.vocab_size if vocabulary is None else vocabulary.shape[0]
    return params | {"lm_head": _UNIFORM(two, (rows, 2 * E))}

  def step(params, target_params, carry, tokens, d):
    own = {"params": params["params"]}
    hidden, state = (carry, jnp.zeros_like(carry)) if d == 1 else carry
    state = module.apply(own, state, target.embed(target_params, tokens), method="step")
    return module.apply(own, hidden, state, method="mix"), (hidden, state)

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    return linear(state, params["params"]["lm_head"]).astype(jnp.float32)

  loss = LossWeights(decay=1.0)
  return Recurrent("redrafter", target, D, init, read, step, loss=loss)
