"""The target network: one transformer for the Llama family, causal or bidirectional, whose MLPs are
dense or mixtures of experts.

Weights are [out, in]. q, k and v are one matrix, and so are gate and up, unless `sharding.split`
has parted them for a mesh. Layers are unrolled: on CPU a scan over stacked weights would copy every
weight at each step.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Evaluation, Features, Params, Target
from specjax.models import cache as kv_cache
from specjax.models.attention import attend
from specjax.models.config import Config
from specjax.models.experts import SparseMLP
from specjax.models.linear import fused, linear, lookup
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm
from specjax.models.rotary import angles, rotate
from specjax.models.sharding import spread_nodes
from specjax.models.some_layers import run_some

_INIT = nn.initializers.normal(0.02)


class Block(nn.Module):
  """Attention and MLP, each behind a norm, on the residual stream.

  `config` is that of the layer, see `Config.of_layer`. `attention_width` is that of
  `attention_input`, where one is given. Without `has_mlp` the layer is attention alone.
  """

  config: Config
  attention_width: int | None = None
  has_mlp: bool = True

  def setup(self):
    c = self.config
    H, K, C = c.heads, c.kv_heads, c.head_dim
    out_init = nn.initializers.normal(0.02 / (2 * c.layers) ** 0.5)
    self.attention_norm = RMSNorm(c.norm_epsilon)
    of_qkv = {"q": H * C, "k": K * C, "v": K * C}
    self.qkv = fused(self, "qkv", of_qkv, _INIT, self.attention_width or c.width)
    if c.qkv_bias:
      of_bias = {f"{name}_bias": rows for name, rows in of_qkv.items()}
      self.qkv_bias = fused(self, "qkv_bias", of_bias, nn.initializers.zeros)
    if c.qk_norm:
      self.q_norm, self.k_norm = RMSNorm(c.norm_epsilon), RMSNorm(c.norm_epsilon)
    self.out = weight(self, "out", out_init, (c.width, H * C))
    if self.has_mlp:
      self.mlp_norm = RMSNorm(c.norm_epsilon)
    if self.has_mlp and c.experts is not None:
      self.experts = SparseMLP(c.experts, c.norm_epsilon, out_init)
    elif self.has_mlp:
      of_mlp = {"gate": c.mlp_width, "up": c.mlp_width}
      self.gate_up = fused(self, "gate_up", of_mlp, _INIT, c.width)
      self.down = weight(self, "down", out_init, (c.width, c.mlp_width))

  def _heads(self, h: Array, first: int = 0) -> list[Array]:
    """q, k and v from number `first` (static) on, [B, N, heads, C]."""
    ys = self.qkv.linear(h, first)
    if self.config.qkv_bias:
      biases = self.qkv_bias.parts(first)
      ys = [y + jnp.broadcast_to(b, y.shape) for y, b in zip(ys, biases, strict=True)]
    return [y.reshape(*h.shape[:2], -1, self.config.head_dim) for y in ys]

  def project(self, x, angle, attention_input=None) -> tuple[Array, Array, Array]:
    """x [B, N, E] -> q [B, H, N, C], k [B, K, N, C], v [B, K, N, C]."""
    h = self.attention_norm(x) if attention_input is None else attention_input
    q, k, v = self._heads(h)
    if self.config.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    q, k, v = (y.swapaxes(1, 2) for y in (q, k, v))
    return rotate(q, angle), rotate(k, angle), v

  def values(self, x: Array) -> Array:
    """x [B, N, E] -> v [B, K, N, C] alone."""
    (v,) = self._heads(self.attention_norm(x), 2)
    return v.swapaxes(1, 2)

  def attention(self, q, k, v, mask, prefix=None) -> Array:
    """[B, N, E], to be added to the stream; see `attend`."""
    return linear(attend(q, k, v, mask, prefix), self.out)

  def mlp(self, x: Array) -> Array:
    """x [B, N, E] -> [B, N, E], to be added to the stream."""
    if self.config.experts is not None:
      return self.experts(self.mlp_norm(x))
    gate, up = self.gate_up.linear(self.mlp_norm(x))
    return linear(nn.silu(gate) * up, self.down)

  def attended(self, x, angle, mask, prefix, earlier=None, attention_input=None):
    """Attention's half: x [B, N, E] -> (x, k [B, K, N, C], v); see `attend` for mask and prefix.

    `earlier` (k, v) are more fresh rows, before the block's own in the mask. Where the mask has
    their columns alone, a row of the block sees itself and no other, and the prefix is of rows that
    one node each sees. `attention_input` [B, N, any] is attended from in place of the normed x. A
    prefix that depends on the queries [B, H, N, C] is a function of them.
    """
    q, k, v = self.project(x, angle, attention_input)
    prefix = prefix(q) if callable(prefix) else prefix
    keys, values = k, v
    if earlier is not None and mask.shape[2] == earlier[0].shape[2]:
      keys, values = earlier
      own = k[:, :, :, None], v[:, :, :, None]
      if prefix is not None:
        own = (jnp.concatenate(pair, 3) for pair in zip(prefix[:2], own, strict=True))
      prefix = *own, mask
    elif earlier is not None:
      keys, values = (jnp.concatenate(pair, 2) for pair in zip(earlier, (k, v), strict=True))
    return x + self.attention(q, keys, values, mask, prefix), k, v

  def __call__(self, x, angle, mask, prefix, earlier=None, attention_input=None):
    """The layer, for the arguments of `attended`: (x [B, N, E], k [B, K, N, C], v)."""
    x, k, v = self.attended(x, angle, mask, prefix, earlier, attention_input)
    return x + self.mlp(x) if self.has_mlp else x, k, v


def of_layer(config: Config, number: int) -> Block:
  """A layer of a network, to be applied to that layer's params alone."""
  return Block(config.of_layer(number))


class Layers(nn.Module):
  """Blocks `layer_0`, `layer_1`, ... of one config, and the masks and angles that they share.

  `attention_width` is that of the first block. With `remat` a gradient keeps what goes into each
  layer, and computes the rest again.
  """

  config: Config
  attention_width: int | None = None
  has_mlp: bool = True
  remat: bool = False

  def setup(self):
    c = self.config
    block = nn.remat(Block) if self.remat else Block
    self.blocks = [
      block(c.of_layer(i), None if i else self.attention_width, self.has_mlp, name=f"layer_{i}")
      for i in range(c.layers)
    ]

  def __call__(
    self, x, position, mask, cache=None, earlier=None, attention_input=None, visible=None, *,
    start=0, stop=None, hidden_layers=(),
  ):  # fmt: skip
    """Layers start..stop over fresh rows.

    Args:
      x: [B, N, E], the residual stream.
      position: i32[B, N], absolute.
      mask: bool[B, N, N], or bool[B, N, M + N] with M earlier rows, or bool[B, N, M], where a row
        sees of x itself alone; a cache then holds arrays [B, K, N, S, C] of rows that one row of x
        each sees.
      cache: a Cache whose first `length` rows everyone sees, or None.
      earlier: KV with arrays [B, K, M, C] of rows that are neither cached nor in x, or None.
        Not together with a window.
      attention_input: of the first block, see `Block`.
      visible: bool[B, S], what of the cache is seen in place of its first rows, or None. Not
        together with a window.
      start, stop: layer range (static).
      hidden_layers: layers whose input is wanted (static).

    Returns:
      ([B, N, E] before the final norm, KV of the layers run, the hidden_layers).
    """
    c = self.config
    angle = angles(c, position)
    if c.window is not None:
      mask = mask & (position[:, :, None] - position[:, None, :] < c.window)
    rows = None if cache is None else kv_cache.rows_of(cache)
    if rows is not None and visible is None:
      visible = cache.length
      if c.window is not None:
        column = jnp.arange(rows.k[0].shape[2])[None, None]
        visible = column < cache.length[:, None, None]
        visible = visible & (position[:, :, None] - column < c.window)
    ks, vs, inputs = [], [], []
    for i, block in list(enumerate(self.blocks))[start:stop]:
      inputs.append(x)
      prefix = None if rows is None else (rows.k[i], rows.v[i], visible)
      before = None if earlier is None else (earlier.k[i], earlier.v[i])
      x, k, v = block(x, angle, mask, prefix, before, attention_input if i == start else None)
      ks.append(k)
      vs.append(v)
    inputs.append(x)
    return x, KV(tuple(ks), tuple(vs)), tuple(inputs[i - start] for i in hidden_layers)


class Transformer(nn.Module):
  """The network; `target` below wraps it as the functions of the contract.

  With `remat` its gradient takes less memory and more time, see `Layers`.
  """

  config: Config
  remat: bool = False

  def setup(self):
    c = self.config
    self.embedding = self.param("embedding", _INIT, (c.vocab_size, c.width))
    self.layers = Layers(c, remat=self.remat)
    nn.share_scope(self, self.layers)  # layer_0, ... lie beside the embedding
    self.norm = RMSNorm(c.norm_epsilon)
    if not c.tied:
      self.lm_head = self.param("lm_head", _INIT, (c.vocab_size, c.width))

  def embed(self, tokens: Array) -> Array:
    """i32[B, N] -> [B, N, E]."""
    return lookup(self.embedding, tokens)

  def head(self, hidden: Array) -> Array:
    """[..., E] after the final norm -> logits f32[..., V]."""
    w = self.embedding if self.config.tied else self.lm_head
    return linear(hidden, w).astype(jnp.float32)

  def run_layers(self, x, position, mask, cache=None, *, start=0, stop=None):
    """Layers start..stop (static) of the residual stream x [B, N, E]: (x, KV of these layers)."""
    return self.layers(x, position, mask, cache, start=start, stop=stop)[:2]

  def final_norm(self, x: Array) -> Array:
    """[..., E] -> [..., E], what `head` reads."""
    return self.norm(x)

  def features(
    self, tokens, position, mask, cache=None, hidden_layers=(), visible=None
  ) -> tuple[Features, KV]:
    """tokens i32[B, N] -> (Features [B, N, E], KV); see `Layers` for the rest."""
    x = self.embed(tokens)
    x, kv, tapped = self.layers(
      x, position, mask, cache, visible=visible, hidden_layers=hidden_layers
    )
    return Features(self.norm(x), tapped), kv

  def __call__(self, tokens: Array, position: Array, mask: Array) -> tuple[Array, KV]:
    """No cache: tokens i32[B, T] -> (hidden [B, T, E] after the final norm, KV)."""
    features, kv = self.features(tokens, position, mask)
    return features.hidden, kv

  def evaluate(
    self, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    """See base.Target.evaluate."""
    features, kv = self.features(tokens, cache.length[:, None] + depth, mask, cache, hidden_layers)
    return Evaluation(spread_nodes(self.head(features.hidden)), features, kv)


def attention_mask(segment: Array, causal: bool) -> Array:
  """bool[B, T, T]: a token sees its own segment i32[B, T], and no later token if `causal`."""
  same = segment[:, :, None] == segment[:, None, :]
  T = segment.shape[1]
  return same & jnp.tril(jnp.ones((1, T, T), bool)) if causal else same


def init(config: Config, key: Array) -> Params:
  """Random weights of the network."""
  z = jnp.zeros((1, 2), jnp.int32)
  return Transformer(config).init(key, z, z, jnp.ones((1, 2, 2), bool))


@functools.cache
def target(config: Config) -> Target:
  """The network as the functions of the contract; one object per config, so jit caches hit."""
  # By its type apply returns the output, or it and variables; without mutable it is the output.
  apply: Callable[..., Any] = Transformer(config).apply

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    B, T = tokens.shape
    position = jnp.broadcast_to(jnp.arange(T), (B, T))
    mask = attention_mask(jnp.zeros_like(tokens), config.causal)
    features, kv = apply(
      params, tokens, position, mask, hidden_layers=hidden_layers, method="features"
    )
    return kv_cache.allocate(kv, length - 1, capacity), features

  def lm_head(params: Params) -> Array:
    return params["params"]["embedding" if config.tied else "lm_head"]

  def make_layers(
    count=1, *, mlp=True, mlp_width=0, attention_width=None, window=True, qk_norm=True,
    qkv_bias=None,
  ):  # fmt: skip
    experts = config.experts  # the last layer's
    if experts is not None:
      experts = None if mlp_width else dataclasses.replace(experts, dense_layers=0)
    own = dataclasses.replace(
      config, layers=count, experts=experts, mlp_width=mlp_width or config.mlp_width,
      window=config.window if window else None, qk_norm=config.qk_norm and qk_norm,
      qkv_bias=config.qkv_bias if qkv_bias is None else qkv_bias,
    )  # fmt: skip
    return Layers(own, attention_width, mlp)

  def last_layer(params: Params) -> tuple[Params, Params]:
    own = params["params"]
    return own[f"layer_{config.layers - 1}"], own["norm"]

  return Target(
    vocab_size=config.vocab_size, prefill=prefill,
    evaluate=functools.partial(apply, method="evaluate"), commit=kv_cache.commit,
    head=functools.partial(apply, method="head"), width=config.width, layers=config.layers,
    heads=config.heads, head_dim=config.head_dim, norm_epsilon=config.norm_epsilon,
    embed=functools.partial(apply, method="embed"),
    run_layers=functools.partial(apply, method="run_layers"),
    norm=functools.partial(apply, method="final_norm"), lm_head=lm_head, make_layers=make_layers,
    last_layer=last_layer,
    run_some=functools.partial(
      run_some, functools.partial(of_layer, config), functools.partial(angles, config)
    ),
  )  # fmt: skip
