"""DFlash: layers that fill a block of masks in one pass, and see the target's states.

Letters: B batch, N rows of a text, M roots, A = D + 1 rows of a block, E width, D depth, L the
target's layers, S rows of a cache or a text.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import blocks, draft_vocabulary
from specjax.heads.base import LossWeights
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.heads.masked_block import MaskedBlock
from specjax.models.linear import linear
from specjax.models.norm import RMSNorm


@dataclasses.dataclass(frozen=True)
class DFlashConfig:
  """Shape of the head.

  Attributes:
    depth: D, masks of a block; mask d guesses depth d.
    layers: transformer layers of the head, 1 or more.
    hidden_layers: layers of the target whose input is read, 0 to L; () is an early, a middle and a
      late one.
    mlp_width: of the layers; 0 is the target's.
    mask_token: id of the target's token whose embedding the masks are; None learns a vector.
  """

  depth: int = 5
  layers: int = 2
  hidden_layers: tuple[int, ...] = ()
  mlp_width: int = 0
  mask_token: int | None = None


def layers_read(L: int, config: DFlashConfig) -> tuple[int, ...]:
  """The layers of a target of L whose input is read; ValueError where it lacks one."""
  return hidden_layers_of(L, config.hidden_layers or (min(1, L), L // 2, L - 1))


class DFlashNet(nn.Module):
  """Layers whose rows are blocks, and whose context is projected anew by every layer."""

  layers: tuple[nn.Module, ...]
  width: int
  epsilon: float
  inputs: int
  has_mask: bool

  def setup(self):
    E, init = self.width, nn.initializers.normal(0.02)
    self.fc = self.param("fc", init, (E, self.inputs * E))
    self.context_norm, self.norm = RMSNorm(self.epsilon), RMSNorm(self.epsilon)
    if self.has_mask:
      self.mask = self.param("mask", init, (E,))

  def context(self, hidden_layers: tuple[Array, ...], position: Array, mask: Array) -> KV:
    """The keys and values, in every layer, of the target's states, arrays [B, N, E]."""
    x = self.context_norm(linear(jnp.concatenate(hidden_layers, -1), self.fc))
    # What else a layer makes of these rows is dead code.
    rows = [layer(x, position, mask, attention_input=x)[1] for layer in self.layers]
    return KV(tuple(r.k[0] for r in rows), tuple(r.v[0] for r in rows))

  def block(
    self,
    root: Array,
    given: Array | None,
    depth: int,
    position: Array,
    sees: Array | None,
    cache: Cache | None,
    earlier: KV | None,
  ) -> Array:
    """As `masked_block.Block`, from the embeddings [B, M, E] of the roots, and that [E] of a mask
    where it is not learned."""
    (B, M, E), A = root.shape, depth + 1
    own = self.mask if given is None else given
    masks = jnp.broadcast_to(own.astype(root.dtype), (B, M, depth, E))
    x = jnp.concatenate([root[:, :, None], masks], 2).reshape(B, M * A, E)
    place, mask = blocks.laid_out(position, 1, A, sees, causal=False)
    for i, layer in enumerate(self.layers):
      seen = None if cache is None else cache._replace(kv=_of_layer(cache.kv, i))
      x, *_ = layer(x, place, mask, seen, None if earlier is None else _of_layer(earlier, i))
    return self.norm(x).reshape(B, M, A, E)[:, :, 1:]

  def __call__(self, hidden_layers, position, mask):
    """Runs everything once, for `init`."""
    self.context(hidden_layers, position, mask)
    given = None if self.has_mask else hidden_layers[0][0, 0]
    return self.block(hidden_layers[0], given, 1, position, None, None, None)


def _of_layer(kv: KV, i: int) -> KV:
  return KV(kv.k[i : i + 1], kv.v[i : i + 1])


@functools.cache
def dflash(target: LayeredTarget, config: DFlashConfig) -> MaskedBlock:
  """Block diffusion in one step: the root and D masks, which see each other and the text.

  Chen et al. 2026 (arXiv 2602.06036). The text is seen through the target's states alone: a matrix
  and a norm make one vector of several layers, which every layer of the head maps to keys and
  values. The block's rows pass through the layers; what mask d becomes is read by the target's LM
  head as the token in its place. Guesses do not see each other's tokens, only that they are there.
  Embeddings are the target's; the mask's vector is learned, or that of a token, and the final norm
  starts as the target's.

  The loss is cross-entropy with the text, of which depth d weighs exp(-(d - 1) / 4), or
  0.78 ** (d - 1), as published for blocks of 8. The published heads have 5 layers, as many states
  of the target, and blocks of 8 to 16; here are 2, 3 and 6. The anchors of training are the
  drafting positions of every head, some at random in each step.

  `dflash-15[path/to/head]` is a published head of blocks of 16.

  Measured: 2.39 tokens per pass (heads_short)

  Raises:
    ValueError: the target lacks a layer or the mask's token.
  """
  E, D, mask_token = target.width, config.depth, config.mask_token
  taps = layers_read(target.layers, config)
  if mask_token is not None:
    checks.whole("mask_token", mask_token, 0, target.vocab_size - 1, note="the target's tokens")
  layers = tuple(
    target.make_layers(mlp_width=config.mlp_width, window=False) for _ in range(config.layers)
  )
  module = DFlashNet(layers, E, target.norm_epsilon, len(taps), mask_token is None)

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, (x,) * len(taps), position, jnp.ones((1, 1, 1), bool))["params"]
    norm = jax.tree.map(jnp.array, target.last_layer(target_params)[1])  # a buffer of its own
    return params | {"norm": norm}

  def memory(params, target_params, features, following, position, mask, cache=None):
    own = {"params": params["params"]}
    kv = module.apply(own, features.hidden_layers, position, mask, method="context")
    return target.embed(target_params, following), kv

  def block(params, target_params, root, position, sees=None, cache=None, earlier=None):
    own, given = {"params": params["params"]}, None
    if mask_token is not None:
      given = target.embed(target_params, jnp.full((1, 1), mask_token, jnp.int32))[0, 0]
    return module.apply(own, root, given, D, position, sees, cache, earlier, method="block")

  read, loss = draft_vocabulary.through(target), LossWeights(decay=0.78)
  return MaskedBlock(
    "dflash", target, D, init, read, block, loss=loss, memory=memory, hidden_layers=taps
  )
