"""TokenSelect: all rows are kept, and each pass reads those that its queries ask for.

Letters: B batch, H query heads, K key/value heads, S capacity, C head dimension, N nodes, R rows.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Cache
from specjax.models import cache as dense
from specjax.models.caches.base import CacheKind, Prefix
from specjax.sampling import likeliest


@functools.cache
def token_select(count: int = 2048, first: int = 128, recent: int = 512) -> CacheKind:
  """LOSSY: each layer reads some rows, for all heads the same, chosen anew in every pass.

  Wu et al. 2024, arXiv 2411.02886. A row's score is the sum over heads of the softmax over all rows
  of its logits with the mean query of the pass. The first and the newest rows are read too. The
  nodes of a draft share one choice.

  It was measured with 512 rows.

  Measured: perplexity 19.722 for 19.540 (caches)

  Args:
    count: rows chosen by score, 1 or more.
    first, recent: rows of the beginning and the end, 0 or more.

  Raises:
    ValueError: numbers below these.
  """
  if count < 1 or min(first, recent) < 0:
    raise ValueError(
      f"`count` must be at least 1, and `first` and `recent` at least 0, got {count}, {first} and "
      f"{recent}."
    )

  def start(kv, queries, length: Array, capacity: int) -> Cache:
    pad = max(capacity - kv.k[0].shape[2], 0)
    return dense.allocate(kv, length, kv.k[0].shape[2] + pad)

  def read(cache: Cache, layer: int, q: Array) -> Prefix:
    k, v = cache.kv.k[layer], cache.kv.v[layer]
    (B, H, _, C), (K, S) = q.shape, k.shape[1:3]
    R = count + first + recent
    if R >= S:
      return k, v, cache.length
    mean = q.mean(2).reshape(B, K, H // K, C).astype(jnp.float32) * C**-0.5
    logits = jnp.einsum("bkgc,bksc->bkgs", mean, k.astype(jnp.float32))
    place = jnp.arange(S, dtype=jnp.int32)[None]
    is_there = place < cache.length[:, None]
    logits = jnp.where(is_there[:, None, None], logits, -jnp.inf)
    score = jax.nn.softmax(logits, -1).sum((1, 2))
    score = jnp.where((place < first) | (place >= cache.length[:, None] - recent), jnp.inf, score)
    best = likeliest(jnp.where(is_there, score, -jnp.inf), R)
    chosen = (dense.gathered(x, best) for x in lax.optimization_barrier((k, v)))
    return (*chosen, jnp.minimum(cache.length, R))  # type: ignore[return-value]  # of three

  def commit(cache: Cache, kv, queries, path: Array, committed: Array) -> Cache:
    return dense.commit(cache, kv, path, committed)

  return CacheKind("token_select", start, read, commit)
