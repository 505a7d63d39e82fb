"""Chimera: three tokens at a time, in a layer that sees the target's states of the whole text.

Letters: B batch, N rows, M roots, D depth, E width, W draft vocabulary.
"""

import dataclasses
import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import draft_vocabulary
from specjax.heads.attending import AttendingRoot
from specjax.heads.base import LossWeights
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.weights import dense

_INIT = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class ChimeraConfig:
  """Shape of the head.

  Attributes:
    depth: D, heads; head d guesses depth d.
  """

  depth: int = 5


class ChimeraNet(nn.Module):
  """The trigram encoder, two matrices, and the full-context encoder, one layer."""

  layers: nn.Module

  @nn.compact
  def __call__(
    self,
    trigram: Array | None,
    hidden: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
    earlier: KV | None = None,
  ) -> tuple[Array, KV]:
    """The layer over embedded trigrams [B, N, 3 E], or over the target's states `hidden` [B, N, E]
    where there are none -> ([B, N, E], KV); see `models.layers.Layers`."""
    if trigram is not None:
      E = trigram.shape[-1] // 3
      x = nn.silu(linear(trigram, weight(self, "trigram", _INIT, (E, 3 * E))))
      hidden = linear(x, weight(self, "mix", _INIT, (E, E)))
    return self.layers(hidden, position, mask, cache, earlier)[:2]


@functools.cache
def chimera(target: LayeredTarget, config: ChimeraConfig) -> AttendingRoot:
  """Guesses from the last three tokens, which attend to the target's states and the guesses above.

  Zeng et al. 2024 (arXiv 2402.15758, section 3). The trigram encoder makes a row of the root or a
  guess and the two tokens before it; the full-context encoder, one layer, sees the target's states
  after the final norm where the target has been, and such rows behind them. Head d reads the
  target's last state beside the row of depth d - 1, through a vocabulary matrix that starts as the
  target's LM head for each half. Embeddings are the target's.

  Guess rows leave no trace: the layer keeps keys and values of the target's states alone. A text of
  one or two tokens repeats its first. The loss is cross-entropy with the text, of which all depths
  weigh the same; `--loss` adds the paper's distance from the target's states, which the published
  program computes and leaves out. That program feeds the best guess of each depth forward; here
  every guess of a tree is.

  Measured: 3.89 tokens per pass (heads_short)
  """
  E, D = target.width, config.depth
  module = ChimeraNet(target.make_layers(window=False))

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
    trigram = jnp.zeros((1, 1, 3 * E))
    params = module.init(key, trigram, x, position, jnp.ones((1, 1, 1), bool))["params"]
    matrix = dense(draft_vocabulary.rows(target.lm_head(target_params), vocabulary))
    both = jnp.concatenate([matrix, matrix], 1)
    return params | {"lm_head": jnp.broadcast_to(both, (D, *both.shape))}

  def apply(params, *arguments):
    return module.apply({"params": params["params"]}, *arguments)

  def memory(params, target_params, features, following, *rest):
    # What else the layer makes of these rows is dead code.
    return features.hidden, apply(params, None, features.hidden, *rest)[1]

  # A state is four vectors: the target's last state, the row's output, two tokens to come before.
  def at_root(params, target_params, last, newest):
    B, M, _ = last.shape
    before = target.embed(target_params, newest[:, :, :2].reshape(B, 2 * M)).reshape(B, M, 2 * E)
    return jnp.concatenate([last, jnp.zeros_like(last), before], -1)

  def attend(params, target_params, state, following, position, *rest):
    last, _, *before = jnp.split(state, 4, -1)
    before.append(target.embed(target_params, following))
    row, kv = apply(params, jnp.concatenate(before, -1), None, position + 1, *rest)
    return jnp.concatenate([last, row, *before[1:]], -1), kv

  def read(params: Params, target_params: Params, state: Array, d: int | None) -> Array:
    assert d is not None  # a state is of one depth
    return linear(state[..., : 2 * E], params["params"]["lm_head"][d - 1]).astype(jnp.float32)

  def feature(state: Array, d: int) -> Array:
    return state[..., E : 2 * E]

  return AttendingRoot(
    "chimera",
    target,
    D,
    init,
    read,
    attend,
    at_root,
    newest=3,
    loss=LossWeights(decay=1.0),
    memory=memory,
    feature=feature,
  )
