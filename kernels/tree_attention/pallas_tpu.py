"""Tree attention on TPU: the cache is read once, dead blocks not at all.

The grid runs over batch, key/value head and blocks of the prefix. A head's rows, nodes times group,
share its keys. The tree is the first block: a node sees itself, so the running maximum is finite
from then on. Whole blocks of prefix carry no mask; the block at the text's end does.

Letters: B batch, H query heads, K key/value heads, G = H / K, R = N G rows of a head, N nodes, S
cache capacity, C width of a head, P rows of a block.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from specjax.kernels.tree_attention.config import LANES, Blocks
from specjax.kernels.tree_attention.reference import Result

LOW = -1e30  # of what is not seen: the difference of two is 0, not NaN


def _dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
  """f32 product of two matrices, contracting one axis of each."""
  dims = (((contract[0],), (contract[1],)), ((), ()))
  return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _kernel(
  length, q, k, v, k_tree, v_tree, mask, out, top_out, total_out, top, total, mixed, *, size: int
):
  """One block; `length` i32[B] lies in scalar memory, the last three are scratch."""
  b, j = pl.program_id(0), pl.program_id(2)
  n = length[b]

  def join(score: Array, values: Array) -> None:
    best = jnp.maximum(top[...], score.max(-1, keepdims=True))
    weight = jnp.exp(score - best[:, :1])
    old = jnp.exp(top[...] - best)
    total[...] = total[...] * old + weight.sum(-1, keepdims=True)
    mixed[...] = mixed[...] * old[:, :1] + _dot(weight.astype(values.dtype), values, (1, 0))
    top[...] = best

  @pl.when(j == 0)
  def _():
    seen = mask[...] != 0
    score = jnp.where(seen, _dot(q[...], k_tree[...], (1, 1)), LOW)
    best = score.max(-1, keepdims=True)
    weight = jnp.where(seen, jnp.exp(score - best), 0.0)
    top[...] = jnp.broadcast_to(best, top.shape)
    total[...] = jnp.broadcast_to(weight.sum(-1, keepdims=True), total.shape)
    mixed[...] = _dot(weight.astype(v_tree.dtype), v_tree[...], (1, 0))

  @pl.when((j + 1) * size <= n)
  def _():
    join(_dot(q[...], k[...], (1, 1)), v[...])

  @pl.when((j * size < n) & ((j + 1) * size > n))
  def _():
    score = _dot(q[...], k[...], (1, 1))
    column = jax.lax.broadcasted_iota(jnp.int32, score.shape, 1) + j * size
    row = jax.lax.broadcasted_iota(jnp.int32, v.shape, 0) + j * size
    join(jnp.where(column < n, score, LOW), jnp.where(row < n, v[...], 0))  # 0 times NaN is NaN

  @pl.when(j == pl.num_programs(2) - 1)
  def _():
    whole = total[:, :1]
    out[...] = (mixed[...] / jnp.where(whole > 0, whole, 1.0)).astype(out.dtype)
    top_out[...] = top[...]
    total_out[...] = total[...]


def tree_attention(
  q: Array, k_cache: Array, v_cache: Array, lengths: Array, k_tree: Array, v_tree: Array,
  tree_mask: Array, scale: float, *, blocks: Blocks, interpret=False,
) -> Result:  # fmt: skip
  """See `reference`; all nodes see the first `lengths` i32[B] cached rows.

  Args:
    blocks: static.
    interpret: False, or how the kernel is simulated (static).
  """
  B, H, N, C = q.shape
  K, S = k_cache.shape[1:3]
  G, size = H // K, blocks.prefix
  blocks.check(S)
  R = N * G
  rows = (q * jnp.asarray(scale, q.dtype)).reshape(B, K, G, N, C)
  rows = rows.swapaxes(2, 3).reshape(B, K, R, C)  # a node's heads lie together, as its mask does
  mask = jnp.repeat(tree_mask.astype(jnp.int8), G, 1)

  def live(b, j, lengths):
    """Blocks past the end are the last live one again, which is not fetched twice."""
    return jnp.minimum(j, jnp.maximum(-(-lengths[b] // size) - 1, 0))

  of_head = lambda count: pl.BlockSpec((None, None, count, C), lambda b, h, j, n: (b, h, 0, 0))  # noqa: E731
  of_cache = pl.BlockSpec((None, None, size, C), lambda b, h, j, n: (b, h, live(b, j, n), 0))
  of_sum = pl.BlockSpec((None, None, R, LANES), lambda b, h, j, n: (b, h, 0, 0))
  out, top, total = pl.pallas_call(
    functools.partial(_kernel, size=size),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(B, K, S // size),
      in_specs=[
        of_head(R), of_cache, of_cache, of_head(N), of_head(N),
        pl.BlockSpec((None, R, N), lambda b, h, j, n: (b, 0, 0)),
      ],
      out_specs=[of_head(R), of_sum, of_sum],
      scratch_shapes=[
        pltpu.VMEM((R, LANES), jnp.float32), pltpu.VMEM((R, LANES), jnp.float32),
        pltpu.VMEM((R, C), jnp.float32),
      ],
    ),
    out_shape=[
      jax.ShapeDtypeStruct((B, K, R, C), q.dtype),
      jax.ShapeDtypeStruct((B, K, R, LANES), jnp.float32),
      jax.ShapeDtypeStruct((B, K, R, LANES), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary")
    ),
    cost_estimate=pl.CostEstimate(
      flops=4 * B * H * N * S * C, transcendentals=B * H * N * S,
      bytes_accessed=2 * k_cache.size * k_cache.dtype.itemsize,
    ),
    interpret=interpret,
  )(lengths, rows, k_cache, v_cache, k_tree, v_tree, mask)  # fmt: skip

  def heads(x: Array) -> Array:
    return x.reshape(B, K, N, G, -1).swapaxes(2, 3).reshape(B, H, N, -1)

  top, total = heads(top)[..., 0], heads(total)[..., 0]
  return Result(heads(out), jnp.where(total > 0, top, -jnp.inf), total)
