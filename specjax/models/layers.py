"""The layers of a network: attention and MLP on a residual stream, for the Llama family.

Weights are [out, in]. q, k and v are one matrix, and so are gate and up, unless `sharding.split`
has parted them for a mesh. Layers are unrolled: on CPU a scan over stacked weights would copy every
weight at each step.
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV
from specjax.models import altup, ring
from specjax.models import cache as kv_cache
from specjax.models.attention import attend
from specjax.models.config import Config, GatedDelta, GatedMemory, Mamba
from specjax.models.delta_net import GatedDeltaNet
from specjax.models.experts import SparseMLP
from specjax.models.gated_memory import GatedMemoryUnit
from specjax.models.latent import LatentAttention
from specjax.models.linear import fused, linear
from specjax.models.lora import weight
from specjax.models.mamba import Mamba2
from specjax.models.newest import gone, reaches
from specjax.models.norm import RMSNorm, unit
from specjax.models.rotary import angles_of_layers, rotate

INIT = nn.initializers.normal(0.02)


class TransformerBlock(nn.Module):
  """Attention and MLP on the residual stream, with norms before them, on what they add, or both,
  or beside each other behind one norm.

  `config` is that of the layer, see `Config.of_layer`. `attention_width` is that of
  `attention_input`, where one is given. Without `has_mlp` the layer is attention alone.
  """

  config: Config
  attention_width: int | None = None
  has_mlp: bool = True

  def setup(self):
    c = self.config
    H, K, C = c.heads, c.kv_heads, c.head_dim
    D = C if c.latent is None else c.latent.value
    inputs = self.attention_width or c.width
    out_init = nn.initializers.normal(0.02 / (2 * c.layers) ** 0.5)
    norm = functools.partial(RMSNorm, c.norm_epsilon, c.centred)
    if c.norms != "after":
      self.attention_norm = norm()
    if c.norms in ("after", "both"):
      self.attention_out_norm = norm()
    of_qkv = {"q": H * C, "k": K * C, "v": K * C}
    if c.attention_gate:  # beside each head's query
      of_qkv["q"] *= 2
    if c.source is not None:
      of_qkv = {"q": of_qkv["q"]}
    elif c.keys_as_values:
      del of_qkv["v"]
    if c.latent is not None:
      self.latents = LatentAttention(c, c.latent, inputs)
    else:
      whole = c.attention_gate and c.source is None
      name = "gated_qkv" if whole else "".join(of_qkv)
      self.qkv = fused(self, name, of_qkv, INIT, inputs)
    if c.qkv_bias:
      of_bias = {f"{name}_bias": rows for name, rows in of_qkv.items()}
      self.qkv_bias = fused(self, "qkv_bias", of_bias, nn.initializers.zeros)
    if c.qk_norm:
      self.q_norm, self.k_norm = RMSNorm(c.norm_epsilon), RMSNorm(c.norm_epsilon)
    self.out = weight(self, "out", out_init, (c.width, H * D))
    if c.sinks:
      self.sinks = self.param("sinks", nn.initializers.zeros, (c.heads,))
    if c.out_bias:
      self.out_bias = self.param("out_bias", nn.initializers.zeros, (c.width,))
    self._set_up_mlp(norm, out_init)

  def _set_up_mlp(self, norm, out_init) -> None:
    c = self.config
    if self.has_mlp and c.norms in ("before", "both"):
      self.mlp_norm = norm()
    if self.has_mlp and c.norms in ("after", "both"):
      self.mlp_out_norm = norm()
    if self.has_mlp and c.experts is not None:
      self.experts = SparseMLP(c.experts, c.norm_epsilon, out_init)
      if c.experts.beside:
        self.dense_out_norm, self.experts_norm, self.experts_out_norm = norm(), norm(), norm()
    if self.has_mlp and (c.experts is None or c.experts.beside):
      of_mlp = {"gate": c.mlp_width, "up": c.mlp_width}
      self.gate_up = fused(self, "gate_up", of_mlp, INIT, c.width)
      self.down = weight(self, "down", out_init, (c.width, c.mlp_width))
    if c.layer_embedding:
      self.own_gate = weight(self, "own_gate", INIT, (c.layer_embedding, c.width))
      self.own_out = weight(self, "own_out", out_init, (c.width, c.layer_embedding))
      self.own_norm = norm()
    if c.layer_scale:
      self.layer_scale = self.param("layer_scale", nn.initializers.ones, (1,))

  def _heads(self, h: Array, first: int = 0) -> list[Array]:
    """q, k and v from number `first` (static) on, [B, N, heads, C]."""
    ys = self.qkv.linear(h, first)
    if self.config.qkv_bias:
      biases = self.qkv_bias.parts(first)
      ys = [y + jnp.broadcast_to(b, y.shape) for y, b in zip(ys, biases, strict=True)]
    return [y.reshape(*h.shape[:2], -1, self.config.head_dim) for y in ys]

  def _gated(self, q: Array) -> tuple[Array, Array | None]:
    """Queries [B, N, H, C], and what weighs the attention from them, if anything does; of q, which
    has both for a head."""
    if not self.config.attention_gate:
      return q, None
    both = q.reshape(*q.shape[:2], -1, 2, q.shape[3])
    return both[:, :, :, 0], both[:, :, :, 1].reshape(*q.shape[:2], -1)

  def _attention_input(self, x: Array) -> Array:
    return x if self.config.norms == "after" else self.attention_norm(x)

  def mlp_input(self, x: Array) -> Array:
    """x [B, N, E] -> [B, N, E], what the MLP reads."""
    if self.config.norms == "shared":
      return self.attention_norm(x)
    return x if self.config.norms == "after" else self.mlp_norm(x)

  def _normed(self, qk: Sequence[Array]) -> list[Array]:
    """q and k [B, N, heads, C] behind their norms; or q alone."""
    norms = (self.q_norm, self.k_norm)[: len(qk)]
    if not self.config.wide_qk_norm:
      return [norm(y) for norm, y in zip(norms, qk, strict=True)]
    wide = (y.reshape(*y.shape[:2], -1) for y in qk)
    own = (norm(y) for norm, y in zip(norms, wide, strict=True))
    return [y.reshape(x.shape) for y, x in zip(own, qk, strict=True)]

  def project(self, x, angle, attention_input=None) -> list[Array]:
    """x [B, N, E] -> q [B, H, N, C], k [B, K, N, C], v [B, K, N, C], or what is in their places of
    latents; q alone where a layer reads another's k and v."""
    return self._projected(x, angle, attention_input)[0]

  def _projected(self, x, angle, attention_input) -> tuple[list[Array], Array | None]:
    """`project`, and the gate [B, N, H * C] of attention's output."""
    c, gate = self.config, None
    h = self._attention_input(x) if attention_input is None else attention_input
    if c.latent is not None:
      q, *kv = self.latents.project(h, angle)
    else:
      ys = self._heads(h)
      ys[0], gate = self._gated(ys[0])
      if c.keys_as_values:
        ys += ys[1:]
      if c.qk_norm:
        ys[:2] = self._normed(ys[:2])
      if c.unit_qk and c.rotary_dim != 0:
        ys[:2] = [unit(y, c.norm_epsilon) for y in ys[:2]]
      if c.unit_v:
        ys[2:] = [unit(y, c.norm_epsilon) for y in ys[2:]]
      ys = [y.swapaxes(1, 2) for y in ys]
      turned = None if c.rotary_dim == 0 else angle
      q, *kv = [rotate(y, turned, c.neighbours) for y in ys[:2]] + ys[2:]
    if angle is not None and len(angle) > 2:
      q = (q * angle[2, :, None, :, :1]).astype(q.dtype)
    if c.attention_scale is not None:  # all that attends divides by the root of C
      q = q * (c.attention_scale * c.head_dim**0.5)
    return [q, *kv], gate

  def values(self, x: Array) -> Array:
    """x [B, N, E] -> v [B, K, N, C] alone."""
    (v,) = self._heads(self._attention_input(x), 2)
    return v.swapaxes(1, 2)

  def attention(self, q, k, v, mask, prefix=None, gate=None) -> Array:
    """[B, N, E], to be added to the stream; see `attend`."""
    c = self.config
    if c.latent is not None:
      y = self.latents(q, k, v, mask, prefix)
    else:
      y = attend(q, k, v, mask, prefix, c.attention_cap, self.sinks if c.sinks else None)
    y = linear(y if gate is None else y * nn.sigmoid(gate), self.out)
    if c.out_bias:
      y = y + jnp.broadcast_to(self.out_bias, y.shape)
    if c.norms in ("after", "both"):
      y = self.attention_out_norm(y)
    return y if c.residual_scale == 1 else y * c.residual_scale

  def mlp(self, x: Array) -> Array:
    """x [B, N, E] -> [B, N, E], to be added to the stream; x is the stream behind attention, or in
    front of it where they share a norm."""
    c, h = self.config, self.mlp_input(x)
    if c.experts is None:
      y = self._dense(h)
    elif c.experts.beside:
      y = self.dense_out_norm(self._dense(h))
      y = y + self.experts_out_norm(self.experts(self.experts_norm(x), x))
    else:
      y = self.experts(h)
    if c.norms in ("after", "both"):
      y = self.mlp_out_norm(y)
    return y if c.residual_scale == 1 else y * c.residual_scale

  def _dense(self, h: Array) -> Array:
    """The dense MLP of h [B, N, E]."""
    gate, up = self.gate_up.linear(h)
    if self.config.sparsity:
      gate = altup.largest(gate, self.config.sparsity)
    return linear(
      (nn.silu(gate) if self.config.activation == "silu" else nn.gelu(gate)) * up, self.down
    )

  def behind(self, x: Array, embedded: Array | None) -> Array:
    """The stream x [B, N, E] with what some families do to it behind a layer, given what the tokens
    have in this layer, [B, N, P]."""
    if self.config.layer_embedding:
      x = x + self._of_tokens(x, embedded)
    return x * jnp.broadcast_to(self.layer_scale, x.shape) if self.config.layer_scale else x

  def _of_tokens(self, x: Array, embedded: Array | None) -> Array:
    """What is added of the tokens' embeddings in this layer."""
    if embedded is None:
      raise ValueError("`embedded` must be given to layers with embeddings of their own, got None.")
    own = nn.gelu(linear(x, self.own_gate)) * embedded
    return self.own_norm(linear(own, self.own_out))

  def attended(self, x, angle, mask, prefix, earlier=None, attention_input=None, read=None):
    """Attention's half: x [B, N, E] -> (x, k [B, K, N, C], v); see `attend` for mask and prefix.

    `earlier` (k, v) are more fresh rows, before the block's own in the mask. Where the mask has
    their columns alone, a row of the block sees itself and no other, and the prefix is of rows that
    one node each sees. `attention_input` [B, N, any] is attended from in place of the normed x. A
    prefix that depends on the queries [B, H, N, C] is a function of them. `read` (k, v) are those
    of the layer whose keys and values this one reads; its own have no numbers then.
    """
    (q, *kv), gate = self._projected(x, angle, attention_input)
    prefix = prefix(q) if callable(prefix) else prefix
    k, v = kv if read is None else read
    keys, values = k, v
    if earlier is not None and mask.shape[2] == earlier[0].shape[2]:
      keys, values = earlier
      own = k[:, :, :, None], v[:, :, :, None]
      if prefix is not None:
        own = (jnp.concatenate(pair, 3) for pair in zip(prefix[:2], own, strict=True))
      prefix = *own, mask
    elif earlier is not None and prefix is None and ring.devices() > 1:
      M = earlier[0].shape[2]  # what is joined would be dealt out anew
      prefix, mask = (*earlier, mask[..., :M]), mask[..., M:]
    elif earlier is not None:
      keys, values = (jnp.concatenate(pair, 2) for pair in zip(earlier, (k, v), strict=True))
    y = x + self.attention(q, keys, values, mask, prefix, gate)
    return (y, k, v) if read is None else (y, k[..., :0], v[..., :0])

  def __call__(
    self, x, angle, mask, prefix, earlier=None, attention_input=None, read=None, embedded=None
  ):
    """The layer, for the arguments of `attended` and `behind`: (x [B, N, E], k [B, K, N, C], v)."""
    y, k, v = self.attended(x, angle, mask, prefix, earlier, attention_input, read)
    before = x if self.config.norms == "shared" else y
    return self.behind(y + self.mlp(before) if self.has_mlp else y, embedded), k, v


_MIXERS: dict[Any, type[nn.Module]] = {
  GatedDelta: GatedDeltaNet, Mamba: Mamba2, GatedMemory: GatedMemoryUnit,
}  # fmt: skip


class RecurrentBlock(TransformerBlock):
  """A layer of `models.recurrence` in attention's place; what it leaves of nodes is as
  `models.hybrid` has it."""

  def setup(self):
    c = self.config
    norm = functools.partial(RMSNorm, c.norm_epsilon, c.centred)
    self.attention_norm = norm()
    self.recurrence = _MIXERS[type(c.recurrence)](c)
    self._set_up_mlp(norm, nn.initializers.normal(0.02 / (2 * c.layers) ** 0.5))

  def attended(self, x, angle, mask, prefix, earlier=None, attention_input=None, read=None):
    if earlier is not None or attention_input is not None:
      raise ValueError("a recurrent layer reads its own text alone: drafts by it are not made.")
    state = None if prefix is None else prefix[0]
    y, nodes, inputs = self._mixed(self.attention_norm(x), mask, state, read)
    scale = self.config.residual_scale
    return x + (y if scale == 1 else y * scale), nodes, inputs

  def _mixed(self, x, mask, state, read):
    return self.recurrence(x, mask, state)


class MemoryBlock(RecurrentBlock):
  """A layer of `models.gated_memory` in attention's place; `read` are a recurrent layer's nodes and
  inputs, and its own rows have no numbers."""

  def _mixed(self, x, mask, state, read):
    nodes, _ = read
    rows = jnp.zeros((x.shape[0], self.config.kv_heads, x.shape[1], 0), x.dtype)
    return self.recurrence(x, nodes.read), rows, rows


class AltUpBlock(TransformerBlock):
  """A layer of several streams [B, N, A, E], of which the first passes it, see `models.altup`."""

  def setup(self):
    super().setup()
    c, own = self.config, self.config.streams
    assert own is not None
    self.altup = altup.AltUp(c.width, own.count, c.norm_epsilon)
    self.laurel = altup.Laurel(own.rank, c.norm_epsilon)

  def __call__(
    self, x, angle, mask, prefix, earlier=None, attention_input=None, read=None, embedded=None
  ):
    predicted = self.altup.predicted(x)
    first = predicted[:, :, 0]
    y, k, v = self.attended(first, angle, mask, prefix, earlier, attention_input, read)
    y = (y + self.laurel(self.attention_norm(first))) * 2**-0.5
    x = self.altup.corrected(predicted, y + self.mlp(y))
    added = self._of_tokens(self.altup.scaled(x[:, :, 0]), embedded)
    return jnp.concatenate([x[:, :, :1], x[:, :, 1:] + added[:, :, None]], 2), k, v


def _block(config: Config) -> type[TransformerBlock]:
  if config.streams is not None:
    return AltUpBlock
  if isinstance(config.recurrence, GatedMemory):
    return MemoryBlock
  return TransformerBlock if config.recurrence is None else RecurrentBlock


def of_layer(config: Config, number: int) -> TransformerBlock:
  """A layer of a network, to be applied to that layer's params alone."""
  own = config.of_layer(number)
  return _block(own)(own)


class Layers(nn.Module):
  """Blocks `layer_0`, `layer_1`, ... of one config, and the masks and angles that they share.

  A layer with a sliding window reads the blocks that the window meets, of its whole cache or of its
  newest rows, see `models.newest`.

  `attention_width` is that of the first block. With `remat` a gradient keeps what goes into each
  layer, and computes the rest again.
  """

  config: Config
  attention_width: int | None = None
  has_mlp: bool = True
  remat: bool = False

  def setup(self):
    c = self.config

    def block(number: int) -> TransformerBlock:
      own, width = c.of_layer(number), None if number else self.attention_width
      kind = nn.remat(_block(own)) if self.remat else _block(own)
      return kind(own, width, self.has_mlp, name=f"layer_{number}")

    self.blocks = [block(i) for i in range(c.layers)]
    if c.streams is not None:
      self.stream_ends = altup.StreamEnds(c.width, c.streams.count)

  def __call__(
    self,
    x,
    position,
    mask,
    cache=None,
    earlier=None,
    attention_input=None,
    visible=None,
    embedded=None,
    windows_from=None,
    *,
    start=0,
    stop=None,
    hidden_layers=(),
  ):
    """Layers start..stop over fresh rows.

    Args:
      x: [B, N, E], the residual stream.
      position: i32[B, N], absolute.
      mask: bool[B, N, N], or bool[B, N, M + N] with M earlier rows, or bool[B, N, M], where a row
        sees of x itself alone; a cache then holds arrays [B, K, N, S, C] of rows that one row of x
        each sees.
      cache: a Cache whose first `length` rows everyone sees, or None.
      earlier: KV with arrays [B, K, M, C] of rows that are neither cached nor in x, or None. A
        sliding window is in their mask, and rows that one row of x each sees are inside it.
      attention_input: of the first block, see `Block`.
      visible: bool[B, S], what of the cache is seen in place of its first rows, or None. Not
        together with a window.
      embedded: [B, N, L, P], the tokens' embeddings in each layer, where layers have such.
      windows_from: i32[B, N], the positions from which sliding windows reach back, or None for the
        rows' own.
      start, stop: layer range (static).
      hidden_layers: layers whose input is wanted (static).

    Returns:
      ([B, N, E] before the final norm, KV of the layers run, the hidden_layers, of several streams
      the first).
    """
    angle = angles_of_layers(self.config, position)
    M = 0 if earlier is None else earlier.k[0].shape[2]
    seen_from = position if windows_from is None else windows_from
    rows = None if cache is None else kv_cache.rows_of(cache)

    @functools.cache
    def seen(
      window: int | None, chunk: int | None, reach: int | None
    ) -> tuple[Array, list[Array | None]]:
      """What a layer of this window, or these chunks, sees: `mask`, and what is visible of the
      cache, which may hold the newest rows of this reach alone."""
      own, far, all_seen = mask, [visible], window is None and chunk is None
      if not all_seen and mask.shape[2] != M:
        place, column = seen_from[:, :, None], position[:, None, :]
        near = place - column < window if chunk is None else place // chunk == column // chunk
        own = jnp.concatenate([mask[..., :M], mask[..., M:] & near], 2)
      if rows is not None and visible is None:
        far = [cache.length]
        if not all_seen and (reach is not None or rows.k[0].ndim == 4):
          far += [seen_from - window + 1 if chunk is None else seen_from // chunk * chunk]
        if reach is not None:
          before = gone(cache.length, reach)
          far = [far[0] - before, far[1] - before[:, None], before]
      return own, far

    ks, vs, inputs = [], [], []
    several = self.config.streams is not None
    x = self.stream_ends.spread(x) if several else x
    for i, block in list(enumerate(self.blocks))[start:stop]:
      inputs.append(x[:, :, 0] if several else x)
      layer = self.config.of_layer(i)
      j = i if layer.source is None else layer.source
      if j < start:
        raise ValueError(f"`start` must be at most {j}, whose keys layer {i} reads, got {start}.")
      held = None if rows is None else (rows.k[j], rows.v[j])
      reach = None
      if held is not None and isinstance(held[0], kv_cache.Newest):
        held, reach = (held[0].rows, held[1].rows), reaches(self.config)[j]
      own, far = seen(layer.window, layer.chunk, reach)
      prefix = None if held is None else (*held, *far)
      before = None if earlier is None else (earlier.k[j], earlier.v[j])
      given = attention_input if i == start else None
      read = None if layer.source is None else (ks[j - start], vs[j - start])
      of_layer = None if embedded is None else embedded[:, :, i]
      x, k, v = block(x, angle[i], own, prefix, before, given, read, of_layer)
      ks.append(k)
      vs.append(v)
    x = self.stream_ends.joined(x) if several else x
    inputs.append(x)
    return x, KV(tuple(ks), tuple(vs)), tuple(inputs[i - start] for i in hidden_layers)
