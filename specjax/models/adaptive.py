"""A causal transformer whose layers read some tokens only.

The dense target is as it was: this one runs the same blocks, each behind a condition. A layer that
reads none of a pass's nodes costs nothing, and a node that it does not read passes it by.

Letters: B batch, N nodes, E width, S capacity, K key/value heads, C head dimension, L layers.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache, Evaluation, Features, LayeredTarget, Params
from specjax.models import cache as kv_cache
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.layers import of_layer
from specjax.models.rotary import angles_of_layers
from specjax.models.sharding import spread_nodes
from specjax.models.skipping.base import Skipping


class Read(NamedTuple):
  """The cache: KV of [B, K, S, C], the rows committed i32[B], and the state of a `Skipping`."""

  kv: KV
  length: Array
  state: Any


def run(
  config: Config,
  skipping: Skipping,
  params: Params,
  x: Array,
  position: Array,
  mask: Array,
  cache: Read,
) -> tuple[Array, KV, tuple[Array, ...]]:
  """All layers over the residual stream x [B, N, E], where a skipping says so.

  Returns:
    (x before the final norm; KV [B, K, N, C] of all layers, zeros where none of the nodes is read;
    the inputs of all layers and the last output).
  """
  angle, runs = angles_of_layers(config, position), skipping.runs(cache.state, position)
  absent = jnp.zeros((x.shape[0], config.kv_heads, x.shape[1], config.head_dim), x.dtype)

  def leave(x: Array) -> tuple[Array, Array, Array]:
    return x, absent, absent

  ks, vs, inputs = [], [], []
  for i in range(config.layers):
    own = {"params": params["params"][f"layer_{i}"]}
    prefix = cache.kv.k[i], cache.kv.v[i], cache.length
    block = of_layer(config, i)

    def through(x: Array, i: int = i, block=block, own=own, prefix=prefix):
      heard: Any = block.apply(own, x, angle[i], mask, prefix, method="attended")
      y, k, v = heard
      added, _ = skipping.mlp(params, i, block, y)
      return jnp.where(runs[:, :, i, None], y + added, x), k, v

    inputs.append(x)
    x, k, v = lax.cond(runs[:, :, i].any(), through, leave, x)
    ks.append(k)
    vs.append(v)
  return x, KV(tuple(ks), tuple(vs)), (*inputs, x)


@functools.cache
def adaptive(config: Config, skipping: Skipping) -> LayeredTarget:
  """The network of a config with a choice of layers; one object for each, so that jit caches hit.

  Its plain decoding is the baseline of every drafter, and drafts change no token of it. Drafters
  that read the target's cache or run its layers by themselves are refused, see
  `models.cache.rows_of`.

  Raises:
    ValueError: a network that is not causal, that has a sliding window, latent attention or
      recurrent layers, or whose attention and MLP share a norm.
  """
  if not (config.causal and config.apart):
    raise ValueError(
      "`skipping` must be None for a model that is not causal, that has a sliding window or latent "
      f"attention, or whose attention and MLP share a norm, got {skipping.name!r}."
    )
  if config.recurrent:
    raise ValueError(
      f"`skipping` must be None for a model with recurrent layers, got {skipping.name!r}."
    )
  lm = transformer.target(config)

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    wanted = tuple(range(config.layers + 1)) if skipping.reads else hidden_layers
    cache, found = lm.prefill(params, tokens, length, capacity, hidden_layers=wanted)
    inputs = found.hidden_layers
    state = skipping.start(params, inputs[: config.layers] if skipping.reads else (), length)
    if skipping.reads:
      inputs = tuple(inputs[i] for i in hidden_layers)
    return Read(cache.kv, cache.length, state), Features(found.hidden, inputs)

  def evaluate(params: Params, cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()):
    position = cache.length[:, None] + depth
    x = lm.embed(params, tokens)
    x, kv, inputs = run(config, skipping, params, x, position, mask, cache)
    hidden = lm.norm(params, x)
    found = Features(hidden, tuple(inputs[i] for i in hidden_layers))
    return Evaluation(spread_nodes(lm.head(params, hidden)), found, kv)

  def commit(cache: Any, kv: KV, path: Array, rows: Array) -> Read:
    dense = kv_cache.commit(Cache(cache.kv, cache.length), kv, path, rows)
    return Read(dense.kv, dense.length, cache.state)

  return dataclasses.replace(lm, prefill=prefill, evaluate=evaluate, commit=commit)
