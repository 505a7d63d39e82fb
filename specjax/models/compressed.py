"""A causal transformer over a cache that is not dense.

The dense target is as it was: this one runs the same blocks, and hands their queries to the cache.

Letters: B batch, T prompt length, N nodes, M earlier rows, E width, S capacity.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Evaluation, Features, LayeredTarget, Params
from specjax.models import transformer
from specjax.models.caches.base import CacheKind, Prefix, Queries
from specjax.models.chunks import read_prompts
from specjax.models.config import Config
from specjax.models.layers import of_layer
from specjax.models.rotary import angles_of_layers
from specjax.models.sharding import spread_nodes
from specjax.models.some_layers import dense_prefix, run_some


class Fresh(NamedTuple):
  """What a pass leaves of its N rows for the cache."""

  kv: KV
  queries: Queries


def run(
  config: Config,
  params: Params,
  x: Array,
  position: Array,
  mask: Array,
  cache: Any = None,
  read: Any = dense_prefix,
) -> tuple[Array, Fresh, tuple[Array, ...]]:
  """All layers over the residual stream x [B, N, E], which read a cache by `CacheKind.read`.

  Returns:
    (x before the final norm, what the rows leave, the inputs of all layers and the last output).
  """
  angle = angles_of_layers(config, position)
  ks, vs, queries, inputs = [], [], [], []
  for i in range(config.layers):
    own = {"params": params["params"][f"layer_{i}"]}
    # Its output, see `transformer`.
    apply: Callable[..., Any] = of_layer(config, i).apply
    inputs.append(x)
    q, k, v = apply(own, x, angle[i], method="project")
    prefix = None if cache is None else read(cache, i, q)
    x = x + apply(own, q, k, v, mask, prefix, method="attention")
    x = x + apply(own, x, method="mlp")
    ks.append(k)
    vs.append(v)
    queries.append(q)
  fresh = Fresh(KV(tuple(ks), tuple(vs)), Queries(tuple(queries), position))
  return x, fresh, (*inputs, x)


@functools.cache
def compressed(config: Config, kind: CacheKind) -> LayeredTarget:
  """The network of a config over caches of a kind; one object for each, so that jit caches hit.

  Layers that drafters run by themselves read dense caches alone, see `models.cache.rows_of`.

  Raises:
    ValueError: a network that is not causal, that has a sliding window, latent attention or
      recurrent layers, or whose attention and MLP share a norm.
  """
  if not (config.causal and config.apart):
    raise ValueError(
      "`cache` must be dense for a model that is not causal, that has a sliding window or latent "
      f"attention, or whose attention and MLP share a norm, got {kind.name!r}."
    )
  if config.recurrent:
    raise ValueError(f"`cache` must be dense for a model with recurrent layers, got {kind.name!r}.")
  lm = transformer.target(config)

  def features(params: Params, x: Array, inputs: tuple[Array, ...], layers: tuple[int, ...]):
    return Features(lm.norm(params, x), tuple(inputs[i] for i in layers))

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    def read(cache: Cache | None, tokens: Array, position: Array, mask: Array):
      def before(cache: Cache, layer: int, q: Array) -> Prefix:
        if kind.prompt is None:
          return dense_prefix(cache, layer, q)
        real = jnp.clip(length - position[:, 0], 0, tokens.shape[1])
        return kind.prompt.read(cache, layer, q, real)

      x = lm.embed(params, tokens)
      x, fresh, inputs = run(config, params, x, position, mask, cache, before)
      found = features(params, x, inputs, hidden_layers)
      return fresh.kv, (found, fresh.queries.layers if kind.judges else ())

    together = None if kind.prompt is None else kind.prompt.chunk
    kv, (found, queries) = read_prompts(read, tokens, length, causal=True, together=together)
    place = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    place = jnp.where(place < length[:, None] - 1, place, -1)
    asked = Queries(queries, place) if kind.judges else None
    return kind.start(kv, asked, length - 1, capacity), found

  def evaluate(params: Params, cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()):
    position = cache.length[:, None] + depth
    x = lm.embed(params, tokens)
    x, fresh, inputs = run(config, params, x, position, mask, cache, kind.read)
    found = features(params, x, inputs, hidden_layers)
    return Evaluation(spread_nodes(lm.head(params, found.hidden)), found, fresh)

  def commit(cache: Any, kv: Fresh, path: Array, rows: Array) -> Any:
    return kind.commit(cache, kv.kv, kv.queries if kind.judges else None, path, rows)

  return dataclasses.replace(lm, prefill=prefill, evaluate=evaluate, commit=commit)


def drafting(config: Config, kind: CacheKind) -> LayeredTarget:
  """The network for drafts over caches of a kind: `run_some` reads them."""
  layer = functools.partial(of_layer, config)
  some = functools.partial(
    run_some, layer, functools.partial(angles_of_layers, config), read=kind.read
  )
  return dataclasses.replace(transformer.target(config), run_some=some)
