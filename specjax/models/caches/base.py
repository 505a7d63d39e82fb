"""What a cache of a causal model is, so that a compressed one is a file of its own.

Rows are committed and never taken back: the nodes of a draft are read from the pass that evaluates
them, and only those of the accepted path are compressed.

Letters: B batch, T prompt rows, N nodes, A rows of an accepted path, S capacity, L layers, H query
heads, K key/value heads, C head dimension, W rows whose queries are known, R rows that are read.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from specjax.base import KV, Cache

Prefix = tuple[Array, Array, Array]
"""(keys [B, K, R, C], values [B, K, R, C], which of the R rows are seen), see `attend`."""


class Queries(NamedTuple):
  """What a pass asked for, by which some caches judge their rows.

  Attributes:
    layers: L arrays [B, H, W, C], after RoPE.
    position: i32[B, W], absolute; -1 for rows that are not part of the text.
  """

  layers: tuple[Array, ...]
  position: Array


class Prompt(NamedTuple):
  """How a long prompt is read, where it is not densely.

  Attributes:
    chunk: N, how many of its tokens are read at once (static).
    read: (dense cache of the tokens before a chunk, layer (static), q [B, H, N, C], how many of
      the N count i32[B]) -> the Prefix that the chunk's queries attend to.
  """

  chunk: int
  read: Callable[[Cache, int, Array, Array], Prefix]


class CacheKind(NamedTuple):
  """A way of keeping the keys and values of a text, whose cache is a fixed-shape pytree.

  All arrays of a cache begin with B, and it has a field `length` i32[B], the rows committed.

  Attributes:
    name: as it is typed.
    start: (KV of [B, K, T, C], Queries or None, length i32[B], capacity S (static)) -> the cache of
      the first `length` rows. A kind that judges always has Queries here.
    read: (cache, layer (static), q [B, H, N, C]) -> the Prefix that the layer's queries attend to.
    commit: (cache, KV of [B, K, N, C], Queries of the N nodes or None, path i32[B, A], rows
      i32[B]) -> the cache with the first `rows` nodes of the path appended.
    judges: whether it reads Queries (static); given none, it judges its rows no further.
    prompt: None, or how prompts are read that are longer than a chunk and fill whole ones.
  """

  name: str
  start: Callable[[KV, Queries | None, Array, int], Any]
  read: Callable[[Any, int, Array], Prefix]
  commit: Callable[[Any, KV, Queries | None, Array, Array], Any]
  judges: bool = False
  prompt: Prompt | None = None
