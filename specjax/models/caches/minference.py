"""MInference: of a long prompt each head reads the rows that its attention's pattern points at.

Letters: B batch, H query heads, K key/value heads, C head dimension, N rows of a chunk, W queries,
S rows of the text, R rows that are read, M blocks.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Cache
from specjax.models import cache as dense
from specjax.models.caches.base import CacheKind, Prefix, Prompt
from specjax.models.products import wide
from specjax.models.some_layers import dense_prefix
from specjax.sampling import likeliest

SAMPLE = 64  # the last queries of a chunk, by which columns and diagonals are judged
BLOCK = 64  # rows
JUDGES = 16  # queries from all over a chunk, by which patterns are judged


def attention(q: Array, k: Array, there: Array) -> Array:
  """f32[B, K, W, S], summed over a head's queries [B, H, W, C]; rows that are there bool[B, S]."""
  (B, H, W, C), (K, S) = q.shape, k.shape[1:3]
  of_group = (q * C**-0.5).reshape(B, K, -1, C)
  logits = jnp.einsum("bkwc,bksc->bkws", *wide(of_group, k), preferred_element_type=jnp.float32)
  logits = jnp.where(there[:, None, None], logits, -1e30)
  each = jax.nn.softmax(logits, -1).reshape(B, K, -1, W, S)
  # XLA on CPU takes four times as long, all in all, to sum over the axis.
  return functools.reduce(jnp.add, [each[:, :, g] for g in range(H // K)])


def over(queries: Array, a: Array) -> Array:
  """f32[B, K, S], the sum of attention f32[B, K, W, S] over those queries bool[B, W]."""
  return jnp.einsum("bw,bkws->bks", queries.astype(jnp.float32), a)


def diagonals(a: Array, queries: Array, N: int, real: Array) -> Array:
  """f32[B, K, S]: what rows get from a chunk of real i32[B] queries if distances alone matter.

  The attention f32[B, K, W, S] of the last W queries, if they are bool[B, W], is summed for each
  distance. A row gets the sums of its distances to the chunk's queries, which are consecutive.
  """
  B, K, W, S = a.shape
  # In reverse order and cut into rows that are one shorter, each query is moved by one more.
  moved = jnp.pad(a[:, :, ::-1], ((0, 0), (0, 0), (0, 0), (0, W))).reshape(B, K, -1)
  sums = over(queries[:, ::-1], moved[..., : W * (S + W - 1)].reshape(B, K, W, -1))
  total = jnp.pad(jnp.cumsum(sums, -1), ((0, 0), (0, 0), (1, 0)))
  total = jnp.pad(total, ((0, 0), (0, 0), (0, N - W)), mode="edge")
  ends = jnp.arange(S, dtype=jnp.int32)[None] + real[:, None]
  return jnp.take_along_axis(total, ends[:, None], 2) - total[..., :S]


def blocks(q: Array, k: Array, there: Array, real: Array) -> Array:
  """f32[B, K, S]: of each row its block's share of the attention of the chunk's mean query, over
  the mean keys of blocks; q [B, H, N, C], of which the first `real` i32[B] count."""
  (B, K, S, C), N = k.shape, q.shape[2]
  size = min(BLOCK, N)
  mine = (jnp.arange(N)[None] < real[:, None])[:, None, :, None]
  mean = jnp.where(mine, q, 0).astype(jnp.float32).sum(2, keepdims=True)
  mean = mean / jnp.maximum(real, 1).astype(jnp.float32)[:, None, None, None]
  keys = k.reshape(B, K, S // size, size, C).astype(jnp.float32).mean(3)
  score = attention(mean, keys, there[:, ::size])[:, :, 0]
  return jnp.repeat(score, size, -1)


@functools.cache
def minference(
  count: int = 1024, first: int = 32, recent: int = 128, chunk: int = 512
) -> CacheKind:
  """LOSSY: a long prompt is read in chunks, and heads read some of the rows before one.

  Jiang et al. 2024, arXiv 2407.02490. There are three patterns. A-shape: the first rows and the
  newest. Vertical-slash: half of the rows are those with the highest sums of attention from the
  chunk's last 64 queries, the others lie on the diagonals with the highest sums. Block-sparse:
  blocks of 64 rows whose mean key is the likeliest for the chunk's mean query. All read `count`
  rows, with the first and the newest among them. The paper finds a head's pattern offline; here it
  is that whose rows get the most attention from 16 queries all over the chunk, anew in each chunk,
  which needs no file. Query heads that share keys share rows, and so do the queries of a chunk, so
  that a diagonal is a band. A chunk reads itself whole, and decoding reads all rows. Prompts whose
  padded length is no multiple of `chunk` are read densely.

  Measured: perplexity 11.023 for 10.693 (caches)

  Args:
    count: rows before a chunk that it reads.
    first, recent: how many of them are the first and the newest ones, 0 or more.
    chunk: tokens; above 64 a multiple of it.

  Raises:
    ValueError: numbers out of these bounds.
  """
  whole = 1 <= chunk <= BLOCK or chunk > 0 == chunk % BLOCK
  if min(first, recent) < 0 or count < max(1, first + recent) or not whole:
    raise ValueError(
      "`count` must be at least 1 and `first` + `recent`, these at least 0, and `chunk` 1 to "
      f"{BLOCK} or a multiple, got {count}, {first}, {recent} and {chunk}."
    )

  def start(kv, queries, length: Array, capacity: int) -> Cache:
    return dense.allocate(kv, length, max(capacity, kv.k[0].shape[2]))

  def read_chunk(cache: Cache, layer: int, q: Array, real: Array) -> Prefix:
    k, v = cache.kv.k[layer], cache.kv.v[layer]
    S = k.shape[2]
    if count >= S:
      return k, v, cache.length
    before = cache.length[:, None]
    place = jnp.broadcast_to(jnp.arange(S, dtype=jnp.int32), (len(q), S))
    there, always = place < before, (place < first) | (place >= before - recent)

    W = min(SAMPLE, chunk)
    last = real[:, None] - W + jnp.arange(W, dtype=jnp.int32)[None]
    spread = jnp.arange(JUDGES, dtype=jnp.int32)[None] * real[:, None] // JUDGES
    asked = jnp.concatenate([jnp.maximum(last, 0), spread], 1)
    share = attention(jnp.take_along_axis(q, asked[:, None, :, None], 2), k, there)
    sample, judges = share[:, :, :W], over(spread >= 0, share[:, :, W:])
    columns = jnp.where((there & ~always)[:, None], over(last >= 0, sample), -1)
    least = lax.top_k(columns, (count - first - recent) // 2 + 1)[0][..., -1:]
    ranks = jnp.stack([
      jnp.broadcast_to(place[:, None].astype(jnp.float32), columns.shape),
      jnp.where(columns > least, jnp.inf, diagonals(sample, last >= 0, chunk, real)),
      blocks(q, k, there, real),
    ])  # fmt: skip
    ranks = jnp.where(always[:, None], jnp.inf, ranks)
    best = likeliest(jnp.where(there[:, None], ranks, -jnp.inf), count)
    seen = jnp.take_along_axis(judges[None], best, -1).sum(-1)
    rows = jnp.take_along_axis(best, jnp.argmax(seen, 0)[None, ..., None], 0)[0]
    k, v = (jnp.take_along_axis(x, rows[..., None], 2) for x in (k, v))
    return k, v, jnp.minimum(cache.length, count)

  def commit(cache: Cache, kv, queries, path: Array, committed: Array) -> Cache:
    return dense.commit(cache, kv, path, committed)

  return CacheKind("minference", start, dense_prefix, commit, prompt=Prompt(chunk, read_chunk))
