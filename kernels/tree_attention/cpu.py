"""Tree attention for one CPU, in C++: see `attention.cc`.

Letters: those of `reference`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.kernels import compiled
from specjax.kernels.tree_attention import xla
from specjax.kernels.tree_attention.paged import Paged
from specjax.kernels.tree_attention.reference import Result

LANES = 16  # a head's width is a multiple of it


@functools.partial(jax.custom_jvp, nondiff_argnums=(7, 8))
def tree_attention(
  q: Array,
  k_cache: Array,
  v_cache: Array,
  length: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
  cap: float | None = None,
  start: Array | None = None,
  sinks: Array | None = None,
  before: Array | None = None,
) -> Result:
  """See `reference`; what is seen of the cache are its first rows, length i32[B]. All is float32.

  A text's bits do not depend on its neighbours, nor a node's on the nodes beside it, nor, where
  `before` i32[B] says how many, on which of its first rows the cache holds no more.
  """
  cached, tree = (k_cache, v_cache), (k_tree, v_tree, tree_mask)
  gone = jnp.zeros(0, jnp.int32) if before is None else before
  return _called(compiled.ATTENTION, q, cached, length, tree, gone, scale, cap, start, sinks)


def paged_attention(
  q: Array,
  k_cache: Paged,
  v_cache: Paged,
  length: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
  cap: float | None = None,
  start: Array | None = None,
  sinks: Array | None = None,
) -> Result:
  """`tree_attention` over a cache in pages of 64 rows, with its bits; it has no derivative."""
  cached = k_cache.pages, v_cache.pages
  tree = k_tree, v_tree, tree_mask
  return _called(compiled.PAGES, q, cached, length, tree, k_cache.table, scale, cap, start, sinks)


def _called(
  kernel: str,
  q: Array,
  cached: tuple[Array, Array],
  length: Array,
  tree: tuple[Array, Array, Array],
  numbers: Array,
  scale: float,
  cap: float | None,
  start: Array | None,
  sinks: Array | None,
) -> Result:
  B, H, N, C = q.shape
  K = cached[0].shape[1]
  rows = (q * scale).reshape(B, K, H // K * N, C)
  of_rows = jax.ShapeDtypeStruct(rows.shape[:-1], jnp.float32)
  shapes = jax.ShapeDtypeStruct(rows.shape, jnp.float32), of_rows, of_rows
  call = jax.ffi.ffi_call(kernel, shapes, vmap_method="sequential")
  begin = jnp.zeros((B, 0), jnp.int32) if start is None else start
  sunk = jnp.zeros(0) if sinks is None else sinks.astype(jnp.float32)
  out, top, total = call(
    rows, *cached, length, *tree, begin, numbers, sunk, cap=np.float32(cap or 0)
  )
  return Result(out.reshape(B, H, N, C), top.reshape(B, H, N), total.reshape(B, H, N))


@tree_attention.defjvp
def _derivative(scale: float, cap: float | None, primals: tuple, tangents: tuple):
  """XLA's, of its own product."""
  q, k_cache, v_cache, length, k_tree, v_tree, tree_mask, start, sinks, before = primals
  visible = jnp.arange(k_cache.shape[2], dtype=jnp.int32)[None] < length[:, None]
  fixed = (3, 6, 7, 9)  # what is seen has no derivative

  def by_xla(*moving: Array) -> Result:
    q, k_cache, v_cache, k_tree, v_tree, sinks = moving
    tree = k_tree, v_tree, tree_mask, scale
    seen = {"start": start, "cap": cap, "sinks": sinks}
    return xla.tree_attention(q, k_cache, v_cache, visible, *tree, block=128, **seen)

  moving = [x for i, x in enumerate(primals) if i not in fixed]
  own = [x for i, x in enumerate(tangents) if i not in fixed]
  tree = k_tree, v_tree, tree_mask
  result = tree_attention(q, k_cache, v_cache, length, *tree, scale, cap, start, sinks, before)
  return result, jax.jvp(by_xla, moving, own)[1]
