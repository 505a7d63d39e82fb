"""Tree attention: which implementation serves a call, and why not another."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from specjax.kernels.platform import platform
from specjax.kernels.tree_attention import config, pallas_tpu, reference, xla
from specjax.kernels.tree_attention.quantised import Cached, Quantised
from specjax.kernels.tree_attention.reference import Result
from specjax.kernels.tree_attention.sharded import over_mesh

Implementation = Literal["reference", "xla", "pallas_tpu"]


def _tpu_blocks(q: Array, k_cache: Cached) -> config.Blocks | None:
  values = jax.tree.leaves(k_cache)[0]
  K, S, C = values.shape[1:]
  return config.tpu_blocks(S, C, values.dtype.itemsize, q.shape[1] // K * q.shape[2])


def refusal(implementation: Implementation, q: Array, k_cache: Cached) -> str | None:
  """Why an implementation cannot serve these shapes here; None if it can."""
  if implementation != "pallas_tpu":
    return None
  C = q.shape[-1]
  if platform() != "tpu":
    return f"the platform is {platform()}, not tpu"
  if C not in (64, 128, 256):
    return f"heads are {C} wide, not 64, 128 or 256"
  if _tpu_blocks(q, k_cache) is None:
    return f"{q.shape[1]} heads of {q.shape[2]} nodes do not fit beside a block"
  return None


def reads_blocks(k_cache: Cached) -> bool:
  """Whether a cache [B, K, S, C] is better read in blocks than by one product, whatever is seen.

  Not where it is a block or two; not on GPU, where XLA asks the host before each block; and not
  for one key/value head, of which XLA multiplies a batch and a single row by different methods, so
  that their bits differ.
  """
  K, S = jax.tree.leaves(k_cache)[0].shape[1:3]
  return K > 1 and S > 512 and platform() in ("cpu", "tpu")


def _check(q, k_cache, v_cache, prefix, k_tree, v_tree, tree_mask) -> None:
  """ValueError unless shapes fit; see `tree_attention`."""
  B, H, N, C = q.shape
  K, S = jax.tree.leaves(k_cache)[0].shape[1:3]
  M = k_tree.shape[2]
  wanted: dict[str, tuple] = {
    "k_tree": (k_tree, (B, K, M, C)), "v_tree": (v_tree, (B, K, M, C)),
    "tree_mask": (tree_mask, (B, N, M)),
    "prefix": (prefix, (B, S) if prefix.dtype == bool else (B,)),
  }  # fmt: skip
  for name, x in {"k_cache": k_cache, "v_cache": v_cache}.items():
    if isinstance(x, Quantised):
      wanted |= {f"{name}.values": (x.values, (B, K, S, C)), f"{name}.scale": (x.scale, (B, K, S))}
    else:
      wanted |= {name: (x, (B, K, S, C))}
  for name, (x, shape) in wanted.items():
    if x.shape != shape:
      raise ValueError(f"{name}.shape={x.shape}: accepted is {shape}.")
  if H % K:
    raise ValueError(f"q has {H} heads: accepted is a multiple of the cache's {K}.")


def tree_attention(
  q: Array, k_cache: Cached, v_cache: Cached, prefix: Array, k_tree: Array, v_tree: Array,
  tree_mask: Array, *, scale: float | None = None, implementation: Implementation | None = None,
  return_residuals: bool = False,
) -> Array | Result:  # fmt: skip
  """Attention of N nodes over a cache and over each other.

  Nodes come fresh, beside the cache, which is written after they are judged, see
  `models.cache.commit`. Their mask never spans the cache. M is N, or more where other fresh rows
  come with the nodes.

  Args:
    q: [B, H, N, C].
    k_cache, v_cache: [B, K, S, C] or Quantised, H a multiple of K.
    prefix: what of the cache all nodes see: i32[B], its first rows, or bool[B, S], any.
    k_tree, v_tree: [B, K, M, C], of the fresh rows.
    tree_mask: bool[B, N, M], node i sees fresh row j.
    scale: of the scores, static; by default C ** -0.5.
    implementation: static; by default the fastest that can serve the call.
    return_residuals: whether the maximum and the sum come too, to merge with other keys.

  Returns:
    [B, H, N, C], or a Result. On a mesh with axes "data" and "model", rows and heads lie there.

  Raises:
    ValueError: shapes that do not fit, or an implementation that cannot serve them.
  """
  tree = (k_tree, v_tree, tree_mask)
  _check(q, k_cache, v_cache, prefix, *tree)
  if implementation is None:
    implementation = "xla" if refusal("pallas_tpu", q, k_cache) else "pallas_tpu"
  reason = refusal(implementation, q, k_cache)
  if reason is not None:
    raise ValueError(f"implementation={implementation!r}: {reason}.")
  scale = q.shape[-1] ** -0.5 if scale is None else scale

  def attention(q, k_cache, v_cache, prefix, *tree) -> Result:
    S = jax.tree.leaves(k_cache)[0].shape[2]
    if implementation == "pallas_tpu":
      blocks = _tpu_blocks(q, k_cache)
      assert blocks is not None
      return pallas_tpu.tree_attention(q, k_cache, v_cache, prefix, *tree, scale, blocks=blocks)
    visible = prefix
    if prefix.dtype != bool:
      visible = jnp.arange(S, dtype=jnp.int32)[None] < prefix[:, None]
    if implementation == "reference":
      return reference.tree_attention(q, k_cache, v_cache, visible, *tree, scale)
    block = config.xla_block(S)
    return xla.tree_attention(q, k_cache, v_cache, visible, *tree, scale, block=block)

  result = over_mesh(attention, *k_tree.shape[:2])(q, k_cache, v_cache, prefix, *tree)
  return result if return_residuals else result.out
