"""Layers that fill a block of masks in one pass, and see the target's states: DFlash's network.

Letters: B batch, N rows of a text, M roots, A rows of a block, E width, D depth, L the target's
layers.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, LayeredTarget, Params
from specjax.heads import blocks
from specjax.heads.base import Weights
from specjax.heads.blocks import Seen
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.heads.masked_block import Block
from specjax.heads.prefix import RunText
from specjax.models.linear import linear
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm


@dataclasses.dataclass(frozen=True)
class ContextBlockConfig:
  """Shape of the network.

  Attributes:
    depth: D, how many tokens a block guesses.
    layers: transformer layers of the head, 1 or more.
    hidden_layers: layers of the target whose input is read, 0 to L; () is an early, a middle and a
      late one.
    mlp_width: of the layers; 0 is the target's.
    mask_token: id of the target's token whose embedding the masks are; None learns a vector.
    window: how many of the last positions a row sees; None is all.
    whole: numbers of the layers that see everything in spite of a window.
    from_root: whether the root's own row guesses depth 1 and mask d - 1 depth d, as in DeepSpec's
      heads and speculators' `sample_from_anchor`.
  """

  depth: int = 5
  layers: int = 2
  hidden_layers: tuple[int, ...] = ()
  mlp_width: int = 0
  mask_token: int | None = None
  window: int | None = None
  whole: tuple[int, ...] = ()
  from_root: bool = False


def layers_read(L: int, config: ContextBlockConfig) -> tuple[int, ...]:
  """The layers of a target of L whose input is read; ValueError where it lacks one."""
  return hidden_layers_of(L, config.hidden_layers or (min(1, L), L // 2, L - 1))


def windows_of(config: ContextBlockConfig) -> tuple[int | None, ...]:
  """The window of each layer; ValueError for a window below 1 or numbers of no layer."""
  if config.window is not None:
    checks.whole("window", config.window, 1)
  for number in config.whole:
    checks.whole("whole", number, 0, config.layers - 1, note="the head's layers")
  return tuple(None if i in config.whole else config.window for i in range(config.layers))


class ContextBlock(nn.Module):
  """Layers whose rows are blocks, and whose context is projected anew by every layer.

  Attributes:
    layers: one `models.layers.Layers` each.
    windows: how many of the last positions each layer sees, None for all.
    inputs: how many of the target's states are joined.
    has_mask: whether the vector of a mask is learned, or given.
    from_root: whether the root's own row guesses depth 1, so that a block has D rows; else the
      rows of D masks guess, and the block has D + 1.
  """

  layers: tuple[nn.Module, ...]
  windows: tuple[int | None, ...]
  width: int
  epsilon: float
  inputs: int
  has_mask: bool
  from_root: bool = False

  def setup(self):
    E, init = self.width, nn.initializers.normal(0.02)
    self.fc = weight(self, "fc", init, (E, self.inputs * E))
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
    sees: Seen | None,
    cache: Cache | None,
    earlier: KV | None,
  ) -> Array:
    """As `masked_block.Block`, from the embeddings [B, M, E] of the roots, and that [E] of a mask
    where it is not learned."""
    (B, M, E), first = root.shape, 0 if self.from_root else 1
    A = depth + first
    own = self.mask if given is None else given
    masks = jnp.broadcast_to(own.astype(root.dtype), (B, M, A - 1, E))
    x = jnp.concatenate([root[:, :, None], masks], 2).reshape(B, M * A, E)
    for i, (layer, window) in enumerate(zip(self.layers, self.windows, strict=True)):
      place, mask = blocks.laid_out(position, 1, A, sees, causal=False, window=window)
      seen = None if cache is None else cache._replace(kv=_of_layer(cache.kv, i))
      x, *_ = layer(x, place, mask, seen, None if earlier is None else _of_layer(earlier, i))
    return self.norm(x).reshape(B, M, A, E)[:, :, first:]

  def __call__(self, hidden_layers, position, mask):
    """Runs everything once, for `init`."""
    self.context(hidden_layers, position, mask)
    given = None if self.has_mask else hidden_layers[0][0, 0]
    return self.block(hidden_layers[0], given, 2, position, None, None, None)


def _of_layer(kv: KV, i: int) -> KV:
  return KV(kv.k[i : i + 1], kv.v[i : i + 1])


class Parts(NamedTuple):
  """What a head takes of the network: the layers that it reads of the target, the weights, and
  `memory` and `block` of a `MaskedBlock`."""

  hidden_layers: tuple[int, ...]
  init: Weights
  memory: RunText
  block: Block


def parts(target: LayeredTarget, config: ContextBlockConfig) -> Parts:
  """The network on a target, whose embeddings it has; its final norm starts as the target's.

  Raises:
    ValueError: the target lacks a layer or the mask's token, or a window is none.
  """
  E, D, mask_token = target.width, config.depth, config.mask_token
  taps, windows = layers_read(target.layers, config), windows_of(config)
  if mask_token is not None:
    checks.whole("mask_token", mask_token, 0, target.vocab_size - 1, note="the target's tokens")
  layers = tuple(target.make_layers(mlp_width=config.mlp_width, window=w or False) for w in windows)
  module = ContextBlock(
    layers, windows, E, target.norm_epsilon, len(taps), mask_token is None, config.from_root
  )

  def init(key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    x, position = jnp.zeros((1, 1, E)), jnp.zeros((1, 1), jnp.int32)
    params = module.init(key, (x,) * len(taps), position, jnp.ones((1, 1, 1), bool))["params"]
    norm = jax.tree.map(jnp.array, target.last_layer(target_params)[1])  # a buffer of its own
    return params | {"norm": norm}

  def own(params: Params) -> Params:
    """The network's weights alone, of a head that may have others."""
    return {"params": params["params"]}

  def memory(params, target_params, features, following, position, mask, cache=None):
    kv = module.apply(own(params), features.hidden_layers, position, mask, method="context")
    return target.embed(target_params, following), kv

  def block(params, target_params, root, position, sees=None, cache=None, earlier=None):
    given = None
    if mask_token is not None:
      given = target.embed(target_params, jnp.full((1, 1), mask_token, jnp.int32))[0, 0]
    return module.apply(own(params), root, given, D, position, sees, cache, earlier, method="block")

  return Parts(taps, init, memory, block)
