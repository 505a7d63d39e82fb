"""Some of a transformer's sublayers, chosen while the program runs.

A layer has two sublayers, attention and MLP. Each stands behind a condition, so that on a CPU one
that does not run costs nothing: its weights are not read. One program serves every choice.

Letters: B batch, N rows, M earlier rows, E width, L layers, K key/value heads, C head dimension.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Params
from specjax.models.cache import rows_of


def dense_prefix(cache: Any, layer: int, q: Array) -> tuple[Array, Array, Array]:
  """What the queries of a layer attend to in a dense cache: its first `length` rows."""
  k, v = rows_of(cache)
  return k[layer], v[layer], cache.length


def run_some(
  layer: Callable[[int], Any],
  angles: Callable[[Array], Sequence[Array | None]],
  params: Params,
  x: Array,
  position: Array,
  mask: Array,
  cache: Any,
  run: Array,
  *,
  earlier: KV | None = None,
  given: KV | None = None,
  read: Callable[[Any, int, Array], tuple[Array, Array, Array]] = dense_prefix,
) -> tuple[Array, KV, tuple[Array, ...]]:
  """`pieces.RunSome` for a network of blocks `layer_0`, `layer_1`, ...

  Args:
    layer: the `layers.TransformerBlock` of each layer.
    angles: position i32[B, N] -> the rotary angles of each layer.
    read: how a layer's queries read the cache, see `caches.base.CacheKind`.

  Raises:
    ValueError: a model with a sliding window, for which earlier rows are not masked here, with
      latent attention or recurrent layers, or whose attention and MLP share a norm.
  """
  config = layer(0).config
  if windows := {x for i in range(config.layers) for x in layer(i).config.windows}:
    raise ValueError(
      f"`window` must be None for drafts by a model's own layers, got {min(windows)}."
    )
  if any(layer(i).config.recurrence for i in range(config.layers)):
    raise ValueError(
      "`kinds` must be without recurrent layers for drafts by a model's own layers, got "
      "`recurrence`."
    )
  if config.norms == "shared":
    raise ValueError(
      "`norms` must be of attention and MLP in turn for drafts by a model's own layers, got "
      "'shared'."
    )
  for name in ("latent", "layer_scale", "layer_embedding"):
    if own := getattr(config, name):
      raise ValueError(f"`{name}` must be absent for drafts by a model's own layers, got {own}.")
  rotary = angles(position)

  def run_layer(i: int, *arguments: Any, method: str) -> Any:
    own = {"params": params["params"][f"layer_{i}"]}
    return layer(i).apply(own, *arguments, method=method)

  absent = jnp.zeros((x.shape[0], config.kv_heads, x.shape[1], config.head_dim), x.dtype)
  ks, vs, inputs = [], [], []
  for i in range(config.layers):
    prefix = None if cache is None else functools.partial(read, cache, i)
    before = None if earlier is None else (earlier.k[i], earlier.v[i])

    def attend(x: Array, i: int = i, prefix=prefix, before=before) -> tuple[Array, Array, Array]:
      return run_layer(i, x, rotary[i], mask, prefix, before, method="attended")

    def leave(x: Array, i: int = i) -> tuple[Array, Array, Array]:
      return (x, absent, absent) if given is None else (x, given.k[i], given.v[i])

    def mlp(x: Array, i: int = i) -> Array:
      return x + run_layer(i, x, method="mlp")

    inputs.append(x)
    x, k, v = lax.cond(run[i, 0], attend, leave, x)
    x = lax.cond(run[i, 1], mlp, lambda x: x, x)
    ks.append(k)
    vs.append(v)
  return x, KV(tuple(ks), tuple(vs)), tuple(inputs)
