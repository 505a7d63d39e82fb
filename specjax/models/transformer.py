"""The target network: one transformer for the Llama family, causal or bidirectional, whose MLPs are
dense or mixtures of experts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Evaluation, Features, LayeredTarget, Params
from specjax.models import cache as kv_cache
from specjax.models import hybrid, newest
from specjax.models.chunks import read_prompts
from specjax.models.config import Config
from specjax.models.layers import INIT, Layers, of_layer
from specjax.models.linear import linear, lookup
from specjax.models.lora import weight
from specjax.models.norm import RMSNorm
from specjax.models.readers import Readers
from specjax.models.rotary import angles_of_layers
from specjax.models.self_conditioning import SelfConditioning, soft_embeddings
from specjax.models.sharding import spread_nodes
from specjax.models.some_layers import run_some


class Transformer(nn.Module):
  """The network; `target` below wraps it as the functions of the contract.

  With `remat` its gradient takes less memory and more time, see `Layers`.
  """

  config: Config
  remat: bool = False

  def setup(self):
    c = self.config
    self.embedding = weight(self, "embedding", INIT, (c.vocab_size, c.width))
    self.layers = Layers(c, remat=self.remat)
    nn.share_scope(self, self.layers)  # layer_0, ... lie beside the embedding
    self.norm = RMSNorm(c.norm_epsilon, c.centred)
    if c.layer_embedding:
      of_layers, words = c.layers * c.layer_embedding, c.layer_vocab or c.vocab_size
      self.layer_embedding = weight(self, "layer_embedding", INIT, (words, of_layers))
      self.layer_projection = weight(self, "layer_projection", INIT, (of_layers, c.width))
      self.layer_norm = RMSNorm(c.norm_epsilon)
    if c.canvas is not None:
      self.self_conditioning = SelfConditioning(c)
      self.encoder_scale = self.param("encoder_scale", nn.initializers.ones, (c.layers,))
    if not c.tied:
      self.lm_head = weight(self, "lm_head", INIT, (c.vocab_size, c.width))

  def embed(self, tokens: Array) -> Array:
    """i32[B, N] -> [B, N, E]."""
    x, scale = lookup(self.embedding, tokens), self.config.embedding_scale
    return x if scale == 1 else x * scale

  def embed_in_layers(self, tokens: Array, x: Array) -> Array | None:
    """tokens i32[B, N], and x [B, N, E] of `embed` -> [B, N, L, P], what each layer has of them."""
    c, shape = self.config, (*tokens.shape, self.config.layers, self.config.layer_embedding)
    if not c.layer_embedding:
      return None
    if c.layer_vocab is not None:
      tokens = jnp.where(tokens < c.layer_vocab, tokens, 0)
    own = lookup(self.layer_embedding, tokens).reshape(shape) * c.layer_embedding**0.5
    made = self.layer_norm((linear(x, self.layer_projection) * c.width**-0.5).reshape(shape))
    return (made + own) * 2**-0.5

  def head(self, hidden: Array) -> Array:
    """[..., E] after the final norm -> logits f32[..., V]."""
    w = self.embedding if self.config.tied else self.lm_head
    return finished(self.config, linear(hidden, w))

  def run_layers(self, x, position, mask, cache=None, *, start=0, stop=None):
    """Layers start..stop (static) of the residual stream x [B, N, E]: (x, KV of these layers)."""
    return self.layers(x, position, mask, cache, start=start, stop=stop)[:2]

  def final_norm(self, x: Array) -> Array:
    """[..., E] -> [..., E], what `head` reads."""
    return self.norm(x)

  def features(
    self, tokens, position, mask, cache=None, hidden_layers=(), visible=None, added=None
  ) -> tuple[Features, KV]:
    """tokens i32[B, N] -> (Features [B, N, E], KV); `added` [B, N, E] comes to what `embed` gives,
    None is nothing; see `Layers` for the rest."""
    x = self.embed(tokens)
    x = x if added is None else x + added.astype(x.dtype)
    embedded = self.embed_in_layers(tokens, x)
    x, kv, tapped = self.layers(
      x, position, mask, cache, visible=visible, embedded=embedded, hidden_layers=hidden_layers
    )
    return Features(self.norm(x), tapped), kv

  def soften(self, probs: Array) -> Array:
    """f32[..., V] -> [..., E], what `embed` gives of a token that is so distributed."""
    return soft_embeddings(self.embedding, probs) * self.config.embedding_scale

  def canvas_features(self, tokens, position, mask, cache, soft) -> tuple[Array, KV]:
    """tokens i32[B, N] of a canvas and what was said of them, soft [B, N, E] -> (hidden [B, N, E],
    KV). Windows reach back from the canvas's first slot, for all of its slots."""
    x = self.self_conditioning(self.embed(tokens), soft)
    begin = jnp.broadcast_to(position[:, :1], position.shape)
    x, kv, _ = self.layers(x, position, mask, cache, windows_from=begin)
    return self.norm(x), kv

  def __call__(self, tokens: Array, position: Array, mask: Array) -> tuple[Array, KV]:
    """No cache: tokens i32[B, T] -> (hidden [B, T, E] after the final norm, KV)."""
    if self.config.canvas is not None:  # all that such a network has, for its first weights
      return self.canvas_features(tokens, position, mask, None, 0.0 * self.embed(tokens))
    features, kv = self.features(tokens, position, mask)
    return features.hidden, kv

  def evaluate(
    self, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    """See base.Target.evaluate."""
    features, kv = self.features(tokens, cache.length[:, None] + depth, mask, cache, hidden_layers)
    return Evaluation(spread_nodes(self.head(features.hidden)), features, kv)


def finished(config: Config, products: Array) -> Array:
  """Logits f32[..., V] of products with the LM head's rows."""
  logits = products.astype(jnp.float32)
  logits = logits if config.logit_scale == 1 else logits * config.logit_scale
  cap = config.logit_cap
  return logits if cap is None else cap * jnp.tanh(logits / cap)


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
def target(config: Config, whole: bool = True) -> LayeredTarget:
  """The network as the functions of the contract; one object per config, so jit caches hit.

  Without `whole` the caches of layers with a window hold their newest rows alone, see
  `models.newest`.
  """
  # By its type apply returns the output, or it and variables; without mutable it is the output.
  apply: Callable[..., Any] = Transformer(config).apply

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    def read(cache: Cache | None, tokens: Array, position: Array, mask: Array):
      found = apply(params, tokens, position, mask, cache, hidden_layers, method="features")
      return found[::-1]

    if config.recurrent:
      return hybrid.prefill(config, read, tokens, length, capacity)
    if not whole:
      return newest.prefill(config, read, tokens, length, capacity)
    kv, features = read_prompts(read, tokens, length, config.causal)
    return kv_cache.allocate(kv, length - 1, capacity), features

  def lm_head(params: Params) -> Array:
    return params["params"]["embedding" if config.tied else "lm_head"]

  def make_layers(
    count=1,
    *,
    mlp=True,
    mlp_width=0,
    attention_width=None,
    window=True,
    qk_norm=True,
    qkv_bias=None,
  ):
    last = config.of_layer(config.last_attention)
    experts = last.experts
    if experts is not None:
      experts = (
        None if mlp_width else dataclasses.replace(experts, dense_layers=0, sparse_layers=())
      )
    own = dataclasses.replace(
      last,
      layers=count,
      experts=experts,
      mlp_width=mlp_width or config.mlp_width,
      window=last.window if window is True else window or None,
      chunk=None,  # nobody masks earlier rows by it
      source=None,
      layer_scale=False,
      layer_embedding=0,
      layer_vocab=None,
      streams=None,
      sparsity=0.0,
      qk_norm=config.qk_norm and qk_norm,
      qkv_bias=config.qkv_bias if qkv_bias is None else qkv_bias,
    )
    return Layers(own, attention_width, mlp)

  def last_layer(params: Params) -> tuple[Params, Params]:
    own = params["params"]
    return own[f"layer_{config.last_attention}"], own["norm"]

  commit = hybrid.commit if config.recurrent else kv_cache.commit
  return LayeredTarget(
    vocab_size=config.vocab_size,
    prefill=prefill,
    evaluate=functools.partial(apply, method="evaluate"),
    commit=commit if whole else functools.partial(newest.commit, config),
    head=functools.partial(apply, method="head"),
    width=config.width,
    layers=config.layers,
    heads=config.heads,
    head_dim=config.head_dim,
    norm_epsilon=config.norm_epsilon,
    embed=functools.partial(apply, method="embed"),
    run_layers=functools.partial(apply, method="run_layers"),
    norm=functools.partial(apply, method="final_norm"),
    lm_head=lm_head,
    logits=functools.partial(finished, config),
    make_layers=make_layers,
    last_layer=last_layer,
    make_readers=functools.partial(Readers, config),
    run_some=functools.partial(
      run_some, functools.partial(of_layer, config), functools.partial(angles_of_layers, config)
    ),
  )
