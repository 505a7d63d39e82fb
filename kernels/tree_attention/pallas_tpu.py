"""Tree attention on TPU: the cache is read once, and blocks that no node sees are skipped.

The grid runs over batch, key/value head and blocks of the prefix. A head's rows, group times nodes,
share its keys. The tree comes first: a node sees itself, so the running maximum is finite from then
on. Blocks that are seen whole need no mask. A window is a number for each node, the first row that
it sees; it masks the blocks that it cuts, and those before it are skipped.

Of a cache in pages a block is up to eight pages, each an operand of its own: all are the same
array, and which page each takes is read from scalar memory. Pages behind the text are not fetched.

Letters: those of `reference`, and R = G N rows of a head, P rows of a block, J blocks.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from specjax import checks
from specjax.kernels.tree_attention.paged import PAGE, Paged
from specjax.kernels.tree_attention.quantised import Cached, Quantised
from specjax.kernels.tree_attention.reference import Result, capped

LANES = 128
WIDTHS = (64, 80, 96, 128, 192, 256)  # of a head; in memory a row fills whole lanes
AT_ONCE = 8  # pages of a block
LOW = -1e30  # the score of a row that is not seen: LOW - LOW is 0, while -inf would give NaN


def _dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
  """f32 product of two matrices, contracting one axis of each."""
  dims = (((contract[0],), (contract[1],)), ((), ()))
  return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _kernel(
  live,
  fetch,
  q,
  k,
  v,
  k_tree,
  v_tree,
  mask,
  visible,
  start,
  sinks,
  out,
  top_out,
  total_out,
  top,
  total,
  mixed,
  *,
  cap: float | None,
):
  """Adds one block. `live` and `fetch` i32[B, J] lie in scalar memory; the last three are scratch.

  k and v are a block [P, C], a list of pages [64, C], or Quantised with scale [1, P]; `visible` is
  (i8[1, P],), or () where nodes see the first rows; `start` is (i32[R, 1],), or () without a
  window; `sinks` is (f32[R, 1],) or ().
  """
  b, j = pl.program_id(0), pl.program_id(2)
  del fetch  # the index maps use it
  n = live[b, j]

  def tile(block) -> tuple[Array, Array | None]:
    """A block [P, C] as the matrix unit takes it, and the scale of its rows."""
    if isinstance(block, Quantised):
      return block.values[...].astype(jnp.float32).astype(q.dtype), block.scale[...]
    if isinstance(block, list):
      return jnp.concatenate([page[...] for page in block], 0), None
    return block[...], None

  def join(seen) -> None:
    """Adds the block's keys; `seen(shape, axis)` is bool along an axis, None where all are."""
    keys, key_scale = tile(k)
    values, value_scale = tile(v)
    score = _dot(q[...], keys, (1, 1))
    if key_scale is not None:
      score = score * key_scale
    score = capped(score, cap)
    if seen is not None:
      score = jnp.where(seen(score.shape, 1), score, LOW)
      if start:  # a node may see no row of the block, and none before it
        column = j * size + jax.lax.broadcasted_iota(jnp.int32, score.shape, 1)
        score = jnp.where(column >= start[0][...], score, 2 * LOW)
      if value_scale is None:
        values = jnp.where(seen(values.shape, 0), values, 0)  # 0 times NaN is NaN
      else:
        value_scale = jnp.where(seen(value_scale.shape, 1), value_scale, 0)
    best = jnp.maximum(top[...], score.max(-1, keepdims=True))
    weight = jnp.exp(score - best[:, :1])
    old = jnp.exp(top[...] - best)
    total[...] = total[...] * old + weight.sum(-1, keepdims=True)
    if value_scale is not None:
      weight = weight * value_scale
    mixed[...] = mixed[...] * old[:, :1] + _dot(weight.astype(values.dtype), values, (1, 0))
    top[...] = best

  def first_rows(shape: tuple[int, int], axis: int) -> Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis) < n

  def marked_rows(shape: tuple[int, int], axis: int) -> Array:
    flags = visible[0][...].astype(jnp.float32)
    if axis == 0:
      flags = jnp.broadcast_to(flags, (LANES, flags.shape[1])).T[:, :1]
    return jnp.broadcast_to(flags, shape) > 0

  @pl.when(j == 0)
  def _():
    group = q.shape[0] // mask.shape[0]
    seen = jnp.concatenate([mask[...].astype(jnp.float32)] * group, 0) > 0
    score = jnp.where(seen, capped(_dot(q[...], k_tree[...], (1, 1)), cap), LOW)
    best = score.max(-1, keepdims=True)
    if sinks:
      best = jnp.maximum(best, sinks[0][...])
    weight = jnp.where(seen, jnp.exp(score - best), 0.0)
    top[...] = jnp.broadcast_to(best, top.shape)
    whole = weight.sum(-1, keepdims=True)
    if sinks:
      whole = whole + jnp.exp(sinks[0][...] - best)
    total[...] = jnp.broadcast_to(whole, total.shape)
    mixed[...] = _dot(weight.astype(v_tree.dtype), v_tree[...], (1, 0))

  size = len(k) * PAGE if isinstance(k, list) else jax.tree.leaves(k)[0].shape[0]
  pl.when(n == size)(lambda: join(None))
  in_part = marked_rows if visible else first_rows
  pl.when((n > 0) & (n != size if start else n < size))(lambda: join(in_part))

  @pl.when(j == pl.num_programs(2) - 1)
  def _():
    whole = total[:, :1]
    out[...] = (mixed[...] / jnp.where(whole > 0, whole, 1.0)).astype(out.dtype)
    top_out[...] = top[...]
    total_out[...] = total[...]


def plan(prefix: Array, size: int, J: int, start: Array | None = None) -> tuple[Array, Array]:
  """(rows seen in each block i32[B, J], the block to fetch i32[B, J]).

  Where no row is seen, the block before is named again, so nothing is fetched. Of a whole block
  that the windows cut, size + 1 are seen.
  """
  block = jnp.arange(J, dtype=jnp.int32)[None]
  if prefix.dtype == bool:
    live = prefix.reshape(-1, J, size).sum(-1, dtype=jnp.int32)
  else:
    live = jnp.clip(prefix[:, None] - block * size, 0, size)
  if start is not None:
    least, most = start.min(1, keepdims=True), start.max(1, keepdims=True)
    live = jnp.where((live == size) & (block * size < most), size + 1, live)
    live = jnp.where((block + 1) * size > least, live, 0)
  first = jnp.argmax(live > 0, 1, keepdims=True).astype(jnp.int32)
  return live, jax.lax.cummax(jnp.where(live > 0, block, first), axis=1)


def pages_of(table: Array, prefix: Array, fetch: Array, each: int) -> Array:
  """i32[B, J each], of a table i32[B, S / 64] the pages to fetch, `each` (static) for a block.

  In the place of a page behind the text stands that of the block before, so nothing is fetched.
  """
  place = fetch[..., None] * each + jnp.arange(each, dtype=jnp.int32)[None, None]
  behind = (place * PAGE >= prefix[:, None, None]) & (place >= each)
  place = jnp.where(behind, place - each, place).reshape(len(table), -1)
  return jnp.take_along_axis(table, jnp.minimum(place, table.shape[1] - 1), 1)


def tree_attention(
  q: Array,
  k_cache: Cached | Paged,
  v_cache: Cached | Paged,
  prefix: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
  *,
  block: int,
  start: Array | None = None,
  cap: float | None = None,
  sinks: Array | None = None,
  interpret=False,
) -> Result:
  """See `api.tree_attention`.

  Args:
    block: cached rows per block, a multiple of 128 or the whole capacity (static). A cache in
      pages, of which nodes see the first rows, has at most 512.
    interpret: False, or how the kernel is simulated (static).
  """
  B, H, N, C = q.shape
  K = k_tree.shape[1]
  in_pages = isinstance(k_cache, Paged)
  S = k_cache.table.shape[1] * PAGE if in_pages else jax.tree.leaves(k_cache)[0].shape[2]
  block = min(block, AT_ONCE * PAGE) if in_pages else block
  R, size = H // K * N, block
  if block % LANES and block != S:
    checks.refuse("block", block, f"a multiple of {LANES}, or the capacity {S}")
  spare = -k_tree.shape[2] % 8  # the compiler has no product with a single fresh row
  k_tree, v_tree = (jnp.pad(x, ((0, 0), (0, 0), (0, spare), (0, 0))) for x in (k_tree, v_tree))
  tree_mask = jnp.pad(tree_mask, ((0, 0), (0, 0), (0, spare)))
  J = pl.cdiv(S, size)
  if prefix.dtype == bool:  # the last block may reach past the cache
    prefix = jnp.pad(prefix, ((0, 0), (0, J * size - S)))
  rows = (q.astype(jnp.float32) * scale).astype(q.dtype).reshape(B, K, R, C)
  visible = (prefix.astype(jnp.int8)[:, None],) if prefix.dtype == bool else ()
  # A number for each row of a head, as they are multiplied: the group's heads, of each its nodes.
  starts = () if start is None else (jnp.tile(start, (1, H // K))[..., None],)
  own_sinks: tuple[Array, ...] = ()
  if sinks is not None:
    own_sinks = (jnp.repeat(sinks.astype(jnp.float32), N).reshape(K, R, 1),)

  def of_head(*shape: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, None, *shape), lambda b, h, j, live, fetch: (b, h, 0, 0))

  def of_page(m: int) -> pl.BlockSpec:
    each = size // PAGE
    return pl.BlockSpec(
      (None, None, PAGE, C), lambda b, h, j, live, fetch: (fetch[b, j * each + m], h, 0, 0)
    )

  def of_cache(x: Cached | Paged):
    if isinstance(x, Paged):
      return list(map(of_page, range(size // PAGE)))
    rows = pl.BlockSpec((None, None, size, C), lambda b, h, j, live, fetch: (b, h, fetch[b, j], 0))
    scale = pl.BlockSpec((None, None, 1, size), lambda b, h, j, live, fetch: (b, h, 0, fetch[b, j]))
    return jax.tree.map(lambda leaf: rows if leaf.ndim == 4 else scale, x)

  def in_place(x: Cached | Paged) -> Any:
    """Keeps a cache in HBM: before every call XLA would copy one that fits onto the chip."""
    if isinstance(x, Paged):
      return [in_place(x.pages)] * (size // PAGE)
    x = x._replace(scale=x.scale[:, :, None]) if isinstance(x, Quantised) else x
    if interpret:
      return x
    return jax.tree.map(lambda leaf: pltpu.with_memory_space_constraint(leaf, pltpu.HBM), x)

  of_tree = of_head(*k_tree.shape[2:])
  of_mask = pl.BlockSpec((None, *tree_mask.shape[1:]), lambda b, h, j, live, fetch: (b, 0, 0))
  of_visible = pl.BlockSpec((None, 1, size), lambda b, h, j, live, fetch: (b, 0, fetch[b, j]))
  of_start = pl.BlockSpec((None, R, 1), lambda b, h, j, live, fetch: (b, 0, 0))
  of_sink = pl.BlockSpec((None, R, 1), lambda b, h, j, live, fetch: (h, 0, 0))
  live, fetch = plan(prefix, size, J, start)
  if isinstance(k_cache, Paged):
    fetch = pages_of(k_cache.table, prefix, fetch, size // PAGE)
  out, top, total = pl.pallas_call(
    functools.partial(_kernel, cap=cap),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=(B, K, J),
      in_specs=[
        of_head(R, C),
        of_cache(k_cache),
        of_cache(v_cache),
        of_tree,
        of_tree,
        of_mask,
        tuple(of_visible for _ in visible),
        tuple(of_start for _ in starts),
        tuple(of_sink for _ in own_sinks),
      ],
      out_specs=[of_head(R, C), of_head(R, LANES), of_head(R, LANES)],
      scratch_shapes=[pltpu.VMEM((R, width), jnp.float32) for width in (LANES, LANES, C)],
    ),
    out_shape=[
      jax.ShapeDtypeStruct((B, K, R, C), q.dtype),
      jax.ShapeDtypeStruct((B, K, R, LANES), jnp.float32),
      jax.ShapeDtypeStruct((B, K, R, LANES), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    cost_estimate=pl.CostEstimate(
      flops=4 * B * H * N * S * C,
      transcendentals=B * H * N * S,
      bytes_accessed=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((k_cache, v_cache))),
    ),
    interpret=interpret,
  )(
    live,
    fetch,
    rows,
    in_place(k_cache),
    in_place(v_cache),
    k_tree,
    v_tree,
    tree_mask.astype(jnp.int8),
    visible,
    starts,
    own_sinks,
  )
  top, total = (x[..., 0].reshape(B, H, N) for x in (top, total))
  return Result(out.reshape(B, H, N, C), jnp.where(total > 0, top, -jnp.inf), total)
