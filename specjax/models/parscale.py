"""Parallel streams of one model, each behind a prefix of its own, whose states a small MLP weighs.

Letters: B batch, T prompt length, N nodes, P streams, M rows of a prefix, S cache length, K
key/value heads, C head dimension, E width.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, Evaluation, Features, Params, StatesTarget
from specjax.models import cache as kv_cache
from specjax.models import transformer
from specjax.models.chunks import committed
from specjax.models.config import Config
from specjax.models.linear import linear
from specjax.models.sharding import spread_nodes

STREAMS = "streams"  # their weights, beside those of the model


@dataclasses.dataclass(frozen=True)
class ParScale:
  """P streams of a network behind prefixes of M rows; `smoothing` is the share of their weights
  that all have alike. `heads` and `mlp_width` are those of all streams together.

  It raises ValueError for a number out of range and a network that no stream can be of.
  """

  lm: Config
  streams: int
  prefix: int = 48
  smoothing: float = 0.01

  vocab_size = property(lambda self: self.lm.vocab_size)
  width = property(lambda self: self.lm.width)
  layers = property(lambda self: self.lm.layers)
  max_length = property(lambda self: self.lm.max_length)
  causal = property(lambda self: self.lm.causal)
  heads = property(lambda self: self.streams * self.lm.heads)
  mlp_width = property(lambda self: self.streams * self.lm.mlp_width)

  def __post_init__(self):
    checks.whole("streams", self.streams, 1, 64)
    checks.whole("prefix", self.prefix, 1)
    checks.number("smoothing", self.smoothing, 0, 1)
    if not (self.lm.causal and self.lm.apart) or self.lm.recurrent:
      raise ValueError(
        "`model` must be causal for parallel streams, without sliding windows, latent attention, "
        "recurrent layers, embeddings in layers, or norms that attention and MLP share."
      )


def of_lm(params: Params) -> Params:
  """The params of the network alone."""
  return {"params": {name: x for name, x in params["params"].items() if name != STREAMS}}


def prefixes(config: ParScale, params: Params) -> KV:
  """The streams' keys, which are not rotated, and values, arrays [P, K, M, C]."""
  own = [params["params"][STREAMS][f"layer_{i}"] for i in range(config.layers)]
  return KV(tuple(x["prefix_k"] for x in own), tuple(x["prefix_v"] for x in own))


def combined(config: ParScale, params: Params, hidden: Array) -> Array:
  """The streams' states [B, P, N, E] behind the final norm as one, [B, N, E].

  Their weights are a softmax of an MLP over all of them, of which a share is alike (section 3.1).
  """
  P, own = config.streams, params["params"][STREAMS]
  if P == 1:
    return hidden[:, 0]
  B, _, N, E = hidden.shape
  x = hidden.transpose(0, 2, 3, 1).reshape(B, N, E * P)
  for name in ("aggregate_in", "aggregate_out"):
    x = linear(nn.silu(x) if name == "aggregate_out" else x, own[name])
    x = x + jnp.broadcast_to(own[f"{name}_bias"], x.shape)
  share = jax.nn.softmax(x.astype(jnp.float32), -1) * (1 - config.smoothing)
  share = share + config.smoothing / P
  found = [share[:, :, i, None] * hidden[:, i].astype(jnp.float32) for i in range(P)]
  return functools.reduce(jnp.add, found).astype(hidden.dtype)


def start(config: ParScale, params: Params, tokens: Array, key: Array) -> Params:
  """The streams' first weights: each is behind the text tokens i32[P, M] of its row, as if that
  stood in front of position 0, and all weigh the same."""
  P, M, E = *tokens.shape, config.width
  before = jnp.broadcast_to(jnp.arange(-M, 0, dtype=jnp.int32), (P, M))
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((M, M), bool)), (P, M, M))
  read: Any = transformer.Transformer(config.lm).apply(params, tokens, before, causal)
  rows = enumerate(zip(*read[1], strict=True))
  own: dict[str, Any] = {f"layer_{i}": {"prefix_k": k, "prefix_v": v} for i, (k, v) in rows}
  if P > 1:
    own |= {
      "aggregate_in": jax.random.normal(key, (E, E * P)) * (E * P) ** -0.5,
      "aggregate_in_bias": jnp.zeros(E),
      "aggregate_out": jnp.zeros((P, E)),
      "aggregate_out_bias": jnp.zeros(P),
    }
  return own


def init(config: ParScale, key: Array) -> Params:
  """Random weights of the network, and streams behind token 0."""
  params, tokens = transformer.init(config.lm, key), (config.streams, config.prefix)
  own = start(config, params, jnp.zeros(tokens, jnp.int32), key)
  return {"params": {**params["params"], STREAMS: own}}


@functools.cache
def parscale(config: ParScale) -> StatesTarget:
  """P streams of one model as the functions of the contract; one object per config.

  ParScale, Chen et al. 2025, arXiv 2505.10475: each stream reads the text behind keys and values of
  its own in every layer, and their last states are summed by weights that depend on them all. Of a
  batch the streams are more rows. In the cache, [B, P K, M + S, C], they are more heads, and its
  first M rows are the prefixes, which `length` does not count; texts begin at position 0. It is
  another model than the one whose streams it has, and speculation follows its distribution.

  It raises ValueError where hidden layers are asked for, of which each stream has its own.
  """
  lm, P, M = transformer.target(config.lm), config.streams, config.prefix

  def spread(x: Array) -> Array:
    """[B, ..] -> [B P, ..], each row P times."""
    return jnp.broadcast_to(x[:, None], (len(x), P, *x.shape[1:])).reshape(-1, *x.shape[1:])

  def begun(params: Params, kv: KV, length: Array, capacity: int) -> Cache:
    """A cache of the prefixes and of kv, arrays [B, P K, T, C]."""

    def behind(own: Array, x: Array) -> Array:
      rows = own.reshape(1, -1, *own.shape[2:]).astype(x.dtype)
      return jnp.concatenate([jnp.broadcast_to(rows, (len(x), *rows.shape[1:])), x], 2)

    whole = jax.tree.map(behind, prefixes(config, params), kv)
    return kv_cache.allocate(whole, length, capacity + M)

  def read(params, cache: Cache, tokens, depth, mask, hidden_layers=()) -> tuple[Features, KV]:
    if hidden_layers:
      checks.refuse("hidden_layers", hidden_layers, "() for a model in parallel streams")
    B, N = tokens.shape
    kv = jax.tree.map(lambda x: x.reshape(B * P, -1, *x.shape[2:]), cache.kv)
    rows = Cache(kv, spread(cache.length + M))
    found = lm.evaluate(of_lm(params), rows, spread(tokens), spread(depth - M), spread(mask))
    hidden = combined(config, params, found.features.hidden.reshape(B, P, N, -1))
    return Features(hidden), jax.tree.map(lambda x: x.reshape(B, -1, *x.shape[2:]), found.kv)

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    def piece(cache: Cache | None, tokens: Array, position: Array, mask: Array):
      if cache is None:
        shape = len(tokens), P * config.lm.kv_heads, 0, config.lm.head_dim
        none = jax.tree.map(lambda x: jnp.zeros(shape, x.dtype), prefixes(config, params))
        cache = begun(params, none, jnp.zeros_like(length), 0)
      depth = position - cache.length[:, None]
      return read(params, cache, tokens, depth, mask, hidden_layers)[::-1]

    def begin(kv: KV, length: Array) -> Cache:
      return begun(params, kv, length, capacity)

    return committed(piece, begin, commit, tokens, length)

  def evaluate(params, cache, tokens, depth, mask, hidden_layers=()) -> Evaluation:
    found, kv = read(params, cache, tokens, depth, mask, hidden_layers)
    return Evaluation(spread_nodes(lm.head(of_lm(params), found.hidden)), found, kv)

  def commit(cache: Cache, kv: KV, path: Array, rows: Array) -> Cache:
    own = kv_cache.commit(cache._replace(length=cache.length + M), kv, path, rows)
    return own._replace(length=own.length - M)

  return StatesTarget(
    vocab_size=config.vocab_size,
    prefill=prefill,
    evaluate=evaluate,
    commit=commit,
    head=lambda params, hidden: lm.head(of_lm(params), hidden),
    width=config.width,
    embed=lambda params, tokens: lm.embed(of_lm(params), tokens),
    lm_head=lm.lm_head,
    logits=lm.logits,
  )
