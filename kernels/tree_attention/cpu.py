"""Tree attention for one CPU, in C++: see `attention.cc`.

Letters: those of `reference`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax.kernels import compiled
from specjax.kernels.tree_attention import xla
from specjax.kernels.tree_attention.reference import Result

LANES = 16  # a head's width is a multiple of it


@functools.partial(jax.custom_jvp, nondiff_argnums=(7,))
def tree_attention(
  q: Array,
  k_cache: Array,
  v_cache: Array,
  length: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
) -> Result:
  """See `reference`; what is seen of the cache are its first rows, length i32[B]. All is float32.

  A text's bits do not depend on its neighbours, nor a node's on the nodes beside it.
  """
  B, H, N, C = q.shape
  K = k_cache.shape[1]
  rows = (q * scale).reshape(B, K, H // K * N, C)
  of_rows = jax.ShapeDtypeStruct(rows.shape[:-1], jnp.float32)
  shapes = jax.ShapeDtypeStruct(rows.shape, jnp.float32), of_rows, of_rows
  call = jax.ffi.ffi_call(compiled.ATTENTION, shapes, vmap_method="sequential")
  out, top, total = call(rows, k_cache, v_cache, length, k_tree, v_tree, tree_mask)
  return Result(out.reshape(B, H, N, C), top.reshape(B, H, N), total.reshape(B, H, N))


@tree_attention.defjvp
def _derivative(scale: float, primals: tuple[Array, ...], tangents: tuple[Array, ...]):
  """XLA's, of its own product."""
  length, S = primals[3], primals[1].shape[2]
  visible = jnp.arange(S, dtype=jnp.int32)[None] < length[:, None]
  fixed = (3, 6)  # what is seen has no derivative

  def by_xla(*moving: Array) -> Result:
    q, k_cache, v_cache, k_tree, v_tree = moving
    tree = k_tree, v_tree, primals[6], scale
    return xla.tree_attention(q, k_cache, v_cache, visible, *tree, block=128)

  moving = [x for i, x in enumerate(primals) if i not in fixed]
  own = [x for i, x in enumerate(tangents) if i not in fixed]
  return tree_attention(*primals, scale), jax.jvp(by_xla, moving, own)[1]
