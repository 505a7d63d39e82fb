"""Layers that attend to what a target has cached, in place of keys and values of their own.

A target of several kinds of layers has keys and values of each kind; read are those of the last
layer that makes its own and sees everything, and of the last that has a sliding window.

Letters: B batch, W nodes, T rows of a text, E' width, K key/value heads, S cache length, C head
dimension.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import Cache, Params
from specjax.kernels.tree_attention import Paged
from specjax.kernels.tree_attention import gathered as paged_rows
from specjax.models import cache as kv_cache
from specjax.models.cache import Newest
from specjax.models.config import Config
from specjax.models.layers import TransformerBlock, of_layer
from specjax.models.newest import gone, reaches
from specjax.models.norm import RMSNorm
from specjax.models.rotary import angles_of_layers


class TextRows(NamedTuple):
  """The keys and values of a text without a cache, see `Readers.rows`.

  Attributes:
    k, v: [B, K, T, C] by the number of the layer that made them.
    position: i32[B, T], from 0 within each text.
    mask: bool[B, W, T], which of them each node sees where no window slides.
  """

  k: dict[int, Array]
  v: dict[int, Array]
  position: Array
  mask: Array


def source(c: Config, full: bool) -> int:
  """The number of the layer that is read; ValueError where the network has none of the kind."""
  if c.latent is not None:
    raise ValueError("layers that read a target's keys must read no latents, which are no keys.")
  layers = [c.of_layer(i) for i in range(c.layers)]
  kind = "sees everything" if full else "has a sliding window"
  for i, layer in reversed(list(enumerate(layers))):
    makes = layer.source is None and layer.recurrence is None and layer.chunk is None
    if makes and (layer.window is None) == full:
      return i
  raise ValueError(f"`full` must have {not full} alone: no layer of the target {kind}.")


def reader(c: Config, layer: int, width: int, heads: int, mlp_width: int) -> Config:
  """That of a block which reads the keys and values of a layer of a network."""
  return dataclasses.replace(
    c.of_layer(layer),
    width=width or c.width,
    heads=heads or c.heads,
    mlp_width=mlp_width or c.mlp_width,
    source=layer,
    experts=None,
    qkv_bias=False,
    keys_as_values=False,
    attention_gate=False,
    layer_embedding=0,
    streams=None,
  )


class Readers(nn.Module):
  """Blocks `layer_0`, `layer_1`, ... and a final norm, which are the target's but for their widths.

  A node that drafts behind a text of n tokens has position n - 1 and sees the n - 1 rows before it;
  where a window of W rows slides, it sees the last W + 1 of them, as in transformers' Gemma 4. A
  cache that keeps windows alone may lack the first of these.

  Attributes:
    config: the target's.
    width, heads, mlp_width: E', the heads of queries, and the width of MLPs; 0 is the target's.
    full: of each block, whether it reads the layer that sees everything.
  """

  config: Config
  width: int
  heads: int
  mlp_width: int
  full: tuple[bool, ...]

  def setup(self):
    c, sizes = self.config, (self.width, self.heads, self.mlp_width)
    self.blocks = [
      TransformerBlock(reader(c, j, *sizes), name=f"layer_{i}") for i, j in enumerate(self.sources)
    ]
    self.norm = RMSNorm(c.norm_epsilon, c.centred)

  @property
  def sources(self) -> tuple[int, ...]:
    """The layer that each block reads."""
    return tuple(source(self.config, full) for full in self.full)

  @property
  def hidden_layers(self) -> tuple[int, ...]:
    """The layers that are read, whose inputs `rows` takes."""
    return tuple(sorted(set(self.sources)))

  @nn.nowrap
  def rows(
    self, target_params: Params, inputs: Sequence[Array], position: Array, mask: Array
  ) -> TextRows:
    """What a target would have cached of a text, from the inputs [B, T, E] of `hidden_layers`.

    The rest is as in `TextRows`. No parameters of this module are read.
    """
    angle, k, v = angles_of_layers(self.config, position), {}, {}
    for j, x in zip(self.hidden_layers, inputs, strict=True):
      own = {"params": target_params["params"][f"layer_{j}"]}
      found: Any = of_layer(self.config, j).apply(own, x, angle[j], method="project")
      k[j], v[j] = found[1:]
    return TextRows(k, v, position, mask)

  def __call__(self, x: Array, position: Array, seen: Cache | TextRows) -> Array:
    """x [B, W, E'] at position i32[B, W] -> [B, W, E'] behind the final norm."""
    found = {
      j: _of_text(self.config, seen, position, j)
      if isinstance(seen, TextRows)
      else _of_cache(self.config, seen, position, j)
      for j in self.hidden_layers
    }
    angle = angles_of_layers(self.config, position)
    for block, j in zip(self.blocks, self.sources, strict=True):
      read, mask, prefix = found[j]
      x, *_ = block(x, angle[j], mask, prefix, read=read)
    return self.norm(x)


Seen = tuple[tuple[Array, Array], Array, tuple[Array, ...] | None]
"""Keys and values of rows, the mask of them, and a prefix, see `models.attention.attend`."""


def _of_text(c: Config, seen: TextRows, position: Array, layer: int) -> Seen:
  mask, window = seen.mask, c.of_layer(layer).window
  if window is not None:
    mask = mask & (position[:, :, None] - seen.position[:, None] <= window + 1)
  return (seen.k[layer], seen.v[layer]), mask, None


def _of_cache(c: Config, seen: Cache, position: Array, layer: int) -> Seen:
  """The newest row is each node's own, for a node must have one, and the others are the prefix."""
  held, window = kv_cache.rows_of(seen), c.of_layer(layer).window
  k, v, before = held.k[layer], held.v[layer], jnp.zeros_like(seen.length)
  if isinstance(k, Newest):
    reach = reaches(c)[layer]
    assert reach is not None
    k, v, before = k.rows, v.rows, gone(seen.length, reach)
  if isinstance(k, Paged):
    S = k.table.shape[1] * k.pages.shape[2]
    there = jnp.arange(S, dtype=jnp.int32)[None] < seen.length[:, None]
    k, v = paged_rows(k, there), paged_rows(v, there)
  last = jnp.maximum(seen.length - 1 - before, 0)
  B, W = position.shape
  place = jnp.broadcast_to(last[:, None], (B, W))
  own = kv_cache.gathered(k, place), kv_cache.gathered(v, place)
  far: tuple[Array, ...] = (k, v, last)
  if window is not None:
    far += position - (window + 1) - before[:, None], before
  return own, jnp.broadcast_to(jnp.eye(W, dtype=bool), (B, W, W)), far
