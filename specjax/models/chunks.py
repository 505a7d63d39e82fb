"""How prompts are read: at once, or long ones on a CPU in chunks.

A chunk attends to those before it. One pass over all positions works out scores that no token sees,
half of them, and reads the padding as well; on a CPU, which few rows keep busy, nothing makes up
for that.

Letters: B batch, T padded length of the prompts.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import KV, Cache
from specjax.kernels import skinny
from specjax.kernels.platform import platform

CHUNK = 128  # tokens; each chunk reads the weights anew
LONG = 1024  # tokens from which on that is faster
LONG_IN_CPP = 512  # where attention is in C++: it reads no padding, and else takes as long

Read = Callable[[Cache | None, Array, Array, Array], tuple[KV, Any]]


def chunk(T: int) -> int:
  """How many of T tokens are read at once by a causal model."""
  long = LONG_IN_CPP if skinny.available() else LONG
  return CHUNK if platform() == "cpu" and long <= T and T % CHUNK == 0 else T


def read_prompts(
  read: Read, tokens: Array, length: Array, causal: bool, together: int | None = None
) -> tuple[KV, Any]:
  """Reads tokens i32[B, T], of which length i32[B] count.

  Args:
    read: (cache, tokens i32[B, N], position i32[B, N], mask bool[B, N, N]) -> the rows of these
      tokens for the cache, and whatever else there is of them, their axis second to last. A cache
      of None holds nothing.
    causal: whether no token sees a later one, static.
    together: the tokens of a chunk, if T is a multiple, static; None is what is fastest here.

  Returns:
    What `read` returns, of all T tokens; past the chunk that ends the longest text it is zero.
  """
  B, T = tokens.shape
  size = together or (chunk(T) if causal else T)
  size = T if T % size else size
  place = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (B, size))
  mask = jnp.ones((size, size), bool)
  mask = jnp.broadcast_to(jnp.tril(mask) if causal else mask, (B, size, size))
  if size == T:
    return read(None, tokens, place, mask)

  def empty(x: jax.ShapeDtypeStruct) -> Array:
    return jnp.zeros((*x.shape[:-2], T, x.shape[-1]), x.dtype)

  def step(i: Array, found: tuple[KV, Any]) -> tuple[KV, Any]:
    start = i * size
    own = lax.dynamic_slice_in_dim(tokens, start, size, 1)
    fresh = read(Cache(found[0], jnp.full(B, start)), own, start + place, mask)

    def put(x: Array, y: Array) -> Array:
      return lax.dynamic_update_slice_in_dim(x, y, start, x.ndim - 2)

    return jax.tree.map(put, found, fresh)

  shapes = jax.eval_shape(lambda: read(None, tokens[:, :size], place, mask))
  return lax.fori_loop(0, -(-length.max() // size), step, jax.tree.map(empty, shapes))


def committed(
  read: Read,
  begin: Callable[[KV, Array], Cache],
  commit: Callable[[Cache, KV, Array, Array], Cache],
  tokens: Array,
  length: Array,
) -> tuple[Cache, Any]:
  """`read_prompts` of a causal model whose cache is more than its rows: (the cache, what else
  `read` returns).

  A piece of a long prompt is a tree that is a chain, which is evaluated and committed.

  Args:
    read: as there.
    begin: (rows of a text, how many of them count i32[B]) -> their cache.
    commit: as `base.Commit`.
  """
  B, T = tokens.shape
  size = chunk(T)
  place = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (B, size))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool)), (B, size, size))
  if size == T:
    kv, found = read(None, tokens, place, mask)
    return begin(kv, length - 1), found

  shapes = jax.eval_shape(lambda: read(None, tokens[:, :size], place, mask))
  none, first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  def step(i: Array, so_far: tuple[Cache, Any]) -> tuple[Cache, Any]:
    cache, found = so_far
    start = i * size
    own = lax.dynamic_slice_in_dim(tokens, start, size, 1)
    kv, fresh = read(cache, own, start + place, mask)
    cache = commit(cache, kv, place, jnp.clip(length - 1 - start, 0, size))

    def put(x: Array, y: Array) -> Array:
      return lax.dynamic_update_slice_in_dim(x, y, start, x.ndim - 2)

    return cache, jax.tree.map(put, found, fresh)

  def whole(x: Array) -> Array:
    return jnp.zeros((*x.shape[:-2], T, x.shape[-1]), x.dtype)

  whole_text = begin(none, jnp.zeros_like(length)), jax.tree.map(whole, first)
  return lax.fori_loop(0, -(-length.max() // size), step, whole_text)
