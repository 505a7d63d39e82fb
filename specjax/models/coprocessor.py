"""A coprocessor that deliberates on a frozen model's cache and writes latent rows into it.

Liu et al. 2024, arXiv 2412.17747, section 2. A network of the model's shape, which begins as its
copy, reads soft tokens behind the keys and values of the model's own cache. Its states are latents:
the model reads them as embeddings behind the text, and goes on.

Letters: B batch, T earlier rows, G places of a text, N rows at each, L latents, E width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Params
from specjax.models import cache as kv_cache
from specjax.models import transformer
from specjax.models.config import Config


class Coprocessor(NamedTuple):
  """Its weights.

  Attributes:
    network: params of the model's shape, of which embedding and LM head are not read.
    soft: [L, E], the soft tokens.
    size: f32[], what its states are multiplied with.
  """

  network: Params
  soft: Array
  size: Array


def check(config: Config) -> None:
  """Raises ValueError for a network whose cache no coprocessor can be written into."""
  if not (config.causal and config.apart) or config.recurrent:
    raise ValueError(
      "`model` must be causal for a coprocessor, without sliding windows, latent attention, "
      "recurrent layers, embeddings in layers, or norms that attention and MLP share."
    )


def start(config: Config, params: Params, tokens: Array) -> Coprocessor:
  """A copy of the model behind tokens i32[L], whose states are scaled to the size of embeddings
  (neither the tokens nor the scale is of the paper)."""
  soft = transformer.target(config).embed(params, tokens[None])[0]
  norm = params["params"]["norm"]["weight"].astype(jnp.float32)
  size = jnp.sqrt((soft.astype(jnp.float32) ** 2).mean() / (norm**2).mean())
  return Coprocessor(params, soft, size)


def read(
  config: Config, params: Params, x: Array, position: Array, earlier: KV, seen: Array
) -> tuple[Array, KV]:
  """Rows x [B, G, N, E] of G places of each text, of which none sees those of another place.

  Args:
    position: i32[B, G], the place behind which the rows stand.
    earlier: arrays [B, K, T, C], the text's keys and values.
    seen: bool[B, G, T], which of them a place sees.

  Returns:
    (states [B, G, N, E] behind the final norm, KV of the G N rows).
  """
  B, G, N, E = x.shape
  at = position[:, :, None] + 1 + jnp.arange(N, dtype=jnp.int32)[None, None]
  far = jnp.broadcast_to(seen[:, :, None], (B, G, N, seen.shape[2])).reshape(B, G * N, -1)
  own = jnp.kron(jnp.eye(G, dtype=jnp.int32), jnp.tril(jnp.ones((N, N), jnp.int32))) > 0
  mask = jnp.concatenate([far, jnp.broadcast_to(own, (B, G * N, G * N))], 2)

  def behind(own: transformer.Transformer, x, position, mask, earlier) -> tuple[Array, KV]:
    x, kv, _ = own.layers(x, position, mask, earlier=earlier)
    return own.final_norm(x), kv

  rows = x.reshape(B, G * N, E), at.reshape(B, G * N), mask, earlier
  apply: Callable[..., Any] = transformer.Transformer(config).apply
  hidden, kv = apply(params, *rows, method=behind)
  return hidden.reshape(B, G, N, E), kv


def latents(config: Config, own: Coprocessor, position: Array, earlier: KV, seen: Array) -> Array:
  """The latents [B, G, L, E] behind G places of each text, for the arguments of `read`."""
  x = jnp.broadcast_to(own.soft, (*position.shape, *own.soft.shape))
  return read(config, own.network, x, position, earlier, seen)[0] * own.size


def write(config: Config, params: Params, own: Coprocessor, cache: Cache) -> Cache:
  """The cache of the model `params` with L more rows behind its text, for which it has room.

  Raises:
    ValueError: there can be no coprocessor for such a network.
  """
  check(config)
  (B,), L = cache.length.shape, len(own.soft)
  seen = (jnp.arange(cache.kv.k[0].shape[2])[None] < cache.length[:, None])[:, None]
  place = cache.length[:, None] - 1
  x = latents(config, own, place, cache.kv, seen)
  _, kv = read(config, params, x, place, cache.kv, seen)
  path = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
  return kv_cache.commit(cache, kv, path, jnp.full(B, L, jnp.int32))
