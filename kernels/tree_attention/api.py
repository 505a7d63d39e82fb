"""Tree attention: which implementation serves a call, and why not another."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from specjax.kernels.tree_attention import config, pallas_tpu, reference, xla
from specjax.kernels.tree_attention.reference import Result

Implementation = Literal["reference", "xla", "pallas_tpu"]


def refusal(implementation: Implementation, q: Array, k_cache: Array) -> str | None:
  """Why an implementation cannot serve these shapes here; None if it can."""
  if implementation != "pallas_tpu":
    return None
  S, C = k_cache.shape[2:]
  if jax.default_backend() != "tpu":
    return f"the backend is {jax.default_backend()}, not tpu"
  if C not in (64, 128, 256):
    return f"heads are {C} wide, not 64, 128 or 256"
  if config.tpu_blocks(S, C, k_cache.dtype.itemsize) is None:
    return f"a capacity of {S} is no multiple of 128"
  return None


def tree_attention(
  q: Array, k_cache: Array, v_cache: Array, lengths: Array, k_tree: Array, v_tree: Array,
  tree_mask: Array, *, scale: float | None = None, implementation: Implementation | None = None,
  return_residuals: bool = False,
) -> Array | Result:  # fmt: skip
  """Attention of N nodes over the first rows of a cache and over each other.

  The mask never spans the prefix. Nodes come fresh, beside the cache, which is written after they
  are judged, see `models.cache.commit`.

  Args:
    q: [B, H, N, C].
    k_cache, v_cache: [B, K, S, C], H a multiple of K.
    lengths: i32[B], rows of the cache that all nodes see.
    k_tree, v_tree: [B, K, N, C], of the nodes.
    tree_mask: bool[B, N, N], node i sees node j.
    scale: of the scores, static; by default C ** -0.5.
    implementation: static; by default the fastest that can serve the call.
    return_residuals: whether the maximum and the sum come too, to merge with other keys.

  Returns:
    [B, H, N, C], or a Result.

  Raises:
    ValueError: shapes that do not fit, or an implementation that cannot serve them.
  """
  B, H, N, C = q.shape
  K, S = k_cache.shape[1:3]
  shapes = {
    "k_cache": (k_cache, (B, K, S, C)), "v_cache": (v_cache, (B, K, S, C)),
    "lengths": (lengths, (B,)), "k_tree": (k_tree, (B, K, N, C)), "v_tree": (v_tree, (B, K, N, C)),
    "tree_mask": (tree_mask, (B, N, N)),
  }  # fmt: skip
  for name, (x, shape) in shapes.items():
    if x.shape != shape:
      raise ValueError(f"{name}.shape={x.shape}: accepted is {shape}.")
  if H % K:
    raise ValueError(f"q has {H} heads: accepted is a multiple of the cache's {K}.")
  if implementation is None:
    implementation = "xla" if refusal("pallas_tpu", q, k_cache) else "pallas_tpu"
  reason = refusal(implementation, q, k_cache)
  if reason is not None:
    raise ValueError(f"implementation={implementation!r}: {reason}.")
  scale = C**-0.5 if scale is None else scale
  tree = (k_tree, v_tree, tree_mask, scale)
  if implementation == "pallas_tpu":
    blocks = config.tpu_blocks(S, C, k_cache.dtype.itemsize)
    assert blocks is not None
    result = pallas_tpu.tree_attention(q, k_cache, v_cache, lengths, *tree, blocks=blocks)
  else:
    visible = jnp.arange(S, dtype=jnp.int32)[None] < lengths[:, None]
    if implementation == "reference":
      result = reference.tree_attention(q, k_cache, v_cache, visible, *tree)
    else:
      result = xla.tree_attention(q, k_cache, v_cache, visible, *tree, block=config.xla_block(S))
  return result if return_residuals else result.out
