"""Tree attention on Hopper: the prefix is split over the chip and read once.

A kernel in Mosaic GPU reads the whole blocks of the prefix, so it needs no mask; at batch 1 they
are split over enough thread blocks to fill the chip. With a window these are the blocks from the
first that any node sees, masked by a number for each node, the first row that it sees. The rest,
less than a block of prefix and the tree, is one small product in XLA, and the parts are merged by
their maxima and sums, a sink's too. Of a cache in pages a block is a page, which the warpgroup that
copies finds in the table.

On an H100 it agreed with the definition to bfloat16's rounding, and over 8192 rows and more its 64
nodes took a half to a quarter of XLA's time; one node gains nothing, so that it serves unasked only
where a tile is full (`api.default_implementation`). It does not serve float32, which wgmma would
round to 10 bits, heads of 256, whose buffers do not fit, or scattered and int8 rows. Two things are
left to gain. The 64 rows of a thread block share what is on chip, so 64 nodes of 4 heads
bring each key there four times, though from memory once. Fewer rows are padded to the 64 of a
wgmma, where swapped operands would pad them to 8: a single node wastes most of a product, though no
memory bandwidth.

Letters: those of `reference`, and R = G N rows of a head, P rows of a block, Z splits.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from specjax.kernels.tree_attention.config import GPU_BLOCK as BLOCK
from specjax.kernels.tree_attention.config import GPU_TILE as ROWS
from specjax.kernels.tree_attention.paged import PAGE, Paged
from specjax.kernels.tree_attention.reference import Result, capped

LOW = -1e30  # the maximum of no scores: LOW - LOW is 0, while -inf would give NaN
STAGES = 2  # blocks of keys, and of values, that are copied at once


def _product(a, b) -> Array:
  """The product f32[64, M] of a [64, n], in registers or shared memory, and b [n, M] in shared."""

  def multiply(accumulator):
    plgpu.wgmma(accumulator, a, b)
    return accumulator[...]

  return pl.run_scoped(multiply, plgpu.ACC((ROWS, b.shape[1]), jnp.float32))


def _of_rows(ref) -> Array:
  """[64] of global memory, a number for each row of a product."""
  return plgpu.load(ref, (), layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)


def _turned(ref):
  """A view of shared memory [n, m] as [m, n]."""
  return ref.transpose((1, 0))


def _capped(score: Array, cap: float) -> Array:
  """cap tanh(score / cap), by exp: of the chip's own tanh 11 bits are right."""
  return cap - 2 * cap / (jnp.exp(score * (2 / cap)) + 1)


def _kernel(
  lengths,
  q,
  k,
  v,
  window,
  table,
  out,
  top,
  total,
  q_smem,
  k_smem,
  v_smem,
  out_smem,
  top_smem,
  total_smem,
  q_ready,
  k_ready,
  v_ready,
  k_free,
  v_free,
  *,
  heads: int,
  splits: int,
  cap: float | None,
):
  """Attends from 64 rows of a head to a split of the prefix; one warpgroup copies, one computes.

  q [B K, R, C], k and v [B K, S, C], out [Z, B K, R, C], top and total [Z, B K, R]. `window` is
  (the first block that a text's nodes see i32[B], the first row that each sees i32[B, R]), or ().
  `table` is (i32[B, S / 64],) of a cache in pages, of which k and v are the heads [P K, 64, C]; or
  ().
  """
  head, tile, split = (lax.axis_index(name) for name in ("head", "tile", "split"))
  text = lax.div(head, heads)
  blocks = lax.div(lengths[text], BLOCK)
  if window:
    blocks = blocks - window[0][text]
  share = lax.div(blocks + (splits - 1), splits)
  first = split * share
  count = jnp.maximum(jnp.minimum(blocks - first, share), 0)
  if window:
    first = first + window[0][text]

  def slot(step: Array) -> Array:
    return lax.rem(step, jnp.asarray(STAGES, step.dtype))

  @pl.when(lax.axis_index("warpgroup") == 0)
  def _():
    rows = pl.ds(tile * ROWS, ROWS)
    plgpu.copy_gmem_to_smem(q.at[head, rows], q_smem, q_ready)
    plgpu.barrier_wait(q_ready)
    of_row = plgpu.Layout.WGMMA.reduce(1)
    best = plgpu.layout_cast(jnp.full((ROWS,), LOW, jnp.float32), of_row)
    whole = plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), of_row)
    mixed = plgpu.layout_cast(jnp.zeros(out_smem.shape, jnp.float32), plgpu.Layout.WGMMA)
    if window:
      start = _of_rows(window[1].at[text, rows])

    def join(step, carry):
      mixed, best, whole = carry
      i = slot(step)
      plgpu.barrier_wait(k_ready.at[i])
      score = _product(q_smem, _turned(k_smem.at[i]))
      plgpu.barrier_arrive(k_free.at[i])
      if cap is not None:
        score = _capped(score, cap)
      if window:
        column = lax.broadcasted_iota(jnp.int32, score.shape, 1)
        column = plgpu.layout_cast(column, plgpu.Layout.WGMMA) + (first + step) * BLOCK
        seen = column >= lax.broadcast_in_dim(start, score.shape, [0])
        score = jnp.where(seen, score, 2 * LOW)  # a row may see nothing of a block
      better = jnp.maximum(best, score.max(axis=1))
      old = jnp.exp(best - better)
      weight = jnp.exp(score - lax.broadcast_in_dim(better, score.shape, [0]))
      whole = whole * old + weight.sum(axis=1)
      mixed = mixed * lax.broadcast_in_dim(old, mixed.shape, [0])
      plgpu.barrier_wait(v_ready.at[i])
      mixed = mixed + _product(weight.astype(v_smem.dtype), v_smem.at[i])
      plgpu.barrier_arrive(v_free.at[i])
      return mixed, better, whole

    mixed, best, whole = lax.fori_loop(0, count, join, (mixed, best, whole))
    out_smem[...], top_smem[...], total_smem[...] = mixed, best, whole
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(out_smem, out.at[split, head, rows])
    plgpu.copy_smem_to_gmem(top_smem, top.at[split, head, rows])
    plgpu.copy_smem_to_gmem(total_smem, total.at[split, head, rows])
    plgpu.wait_smem_to_gmem(0)

  def refill(step, source, shared, ready, free):
    i = slot(step)

    @pl.when(step >= STAGES)
    def _():
      plgpu.barrier_wait(free.at[i])

    @pl.when(step < count)
    def _():
      if table:
        rows = source.at[table[0][text, first + step] * heads + lax.rem(head, heads)]
      else:
        rows = source.at[head, pl.ds((first + step) * BLOCK, BLOCK)]
      plgpu.copy_gmem_to_smem(rows, shared.at[i], ready.at[i])

  @pl.when(lax.axis_index("warpgroup") == 1)
  def _():
    @pl.loop(0, count + STAGES)  # the last steps wait until every block is used
    def _(step):
      refill(step, k, k_smem, k_ready, k_free)
      refill(step, v, v_smem, v_ready, v_free)


def _whole_blocks(
  q: Array,
  k: Array,
  v: Array,
  lengths: Array,
  splits: int,
  window: tuple[Array, ...] = (),
  cap: float | None = None,
  table: tuple[Array, ...] = (),
) -> Result:
  """Attention of scaled rows q [B K, R, C], R a multiple of 64, as a Result of [Z, B K, R, ...].

  Its `out` is f32 and not yet divided by `total`. See `_kernel` for `window` and `table`.
  """
  heads, R, C = q.shape

  def shared(*shape: int, dtype):
    line = 128 // jnp.dtype(dtype).itemsize
    # jax 0.12's Protocol of transforms has a method without a body, which these inherit.
    transforms = (
      plgpu.TilingTransform((8, line)),  # type: ignore[abstract]
      plgpu.SwizzleTransform(128),  # type: ignore[abstract]
    )
    return plgpu.SMEM(shape, dtype, transforms=transforms)

  of_block = shared(STAGES, BLOCK, C, dtype=k.dtype)
  of_row = plgpu.SMEM((ROWS,), jnp.float32)
  barriers = plgpu.Barrier(num_barriers=STAGES)
  parts = (splits, heads, R)
  return Result(
    *plgpu.kernel(
      functools.partial(_kernel, heads=heads // lengths.shape[0], splits=splits, cap=cap),
      out_type=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*parts, C), parts, parts)],
      scratch_types=[
        shared(ROWS, C, dtype=q.dtype),
        of_block,
        of_block,
        shared(ROWS, C, dtype=jnp.float32),
        of_row,
        of_row,
        plgpu.Barrier(),
        barriers,
        barriers,
        barriers,
        barriers,
      ],
      grid=(heads, R // ROWS, splits),
      grid_names=("head", "tile", "split"),
      num_threads=2,
      thread_name="warpgroup",
      compiler_params=plgpu.CompilerParams(approx_math=True),
    )(lengths, q, k, v, window, table)
  )


def splits_of(capacity: int, tiles: int) -> int:
  """The number of parts of a prefix: enough to fill 132 multiprocessors, of 512 rows at least.

  There are no more, for each part writes float32 sums that are read again. The last bits of a
  result therefore depend on the number of tiles, B K R / 64.
  """
  return max(1, min(capacity // 512, 132 // tiles))


def _rest(cache: Array | Paged, lengths: Array) -> tuple[Array, Array]:
  """(the first row i32[B], the rows [B, K, 64, C]) of a block with all rows behind whole blocks."""
  whole = lengths // BLOCK
  if isinstance(cache, Paged):
    last = jnp.minimum(whole, cache.table.shape[1] - 1)
    page = jnp.take_along_axis(cache.table, last[:, None], 1)[:, 0]
    return last * BLOCK, jnp.take(cache.pages, page, 0, mode="clip")
  corner = jnp.minimum(whole * BLOCK, cache.shape[2] - BLOCK)
  column = corner[:, None] + jnp.arange(BLOCK, dtype=jnp.int32)[None]
  return corner, jnp.take_along_axis(cache, column[:, None, :, None], 2)


def tree_attention(
  q: Array,
  k_cache: Array | Paged,
  v_cache: Array | Paged,
  lengths: Array,
  k_tree: Array,
  v_tree: Array,
  tree_mask: Array,
  scale: float,
  *,
  start: Array | None = None,
  cap: float | None = None,
  sinks: Array | None = None,
) -> Result:
  """See `api.tree_attention`; bf16 or f16, C 64 or 128, S at least 64 and a multiple of 8."""
  B, H, N, C = q.shape
  table = (k_cache.table,) if isinstance(k_cache, Paged) else ()
  held_k, held_v = (x.pages if isinstance(x, Paged) else x for x in (k_cache, v_cache))
  K, S = held_k.shape[1], table[0].shape[1] * PAGE if table else held_k.shape[2]
  R = H // K * N
  rows = (q.astype(jnp.float32) * scale).astype(q.dtype).reshape(B * K, R, C)
  rows = jnp.pad(rows, ((0, 0), (0, -R % ROWS), (0, 0)))
  k_rows, v_rows = (x.reshape(-1, x.shape[2], C) for x in (held_k, held_v))
  tiles = B * K * rows.shape[1] // ROWS
  window: tuple[Array, ...] = ()
  if start is not None:
    first = jnp.clip(start.min(1), 0, lengths) // BLOCK
    window = first, jnp.pad(jnp.tile(start, (1, H // K)), ((0, 0), (0, -R % ROWS)))
  far = _whole_blocks(rows, k_rows, v_rows, lengths, splits_of(S, tiles), window, cap, table)
  far = Result(*(x[:, :, :R].reshape(-1, B, K, R, *x.shape[3:]) for x in far))

  # The rest of the prefix lies in a window of one block, which is joined to the tree.
  done = lengths // BLOCK * BLOCK
  (corner, last_k), (_, last_v) = _rest(k_cache, lengths), _rest(v_cache, lengths)
  column = corner[:, None] + jnp.arange(BLOCK, dtype=jnp.int32)[None]
  left = (column >= done[:, None]) & (column < lengths[:, None])
  k, v = (jnp.concatenate(x, 2) for x in ((last_k, k_tree), (last_v, v_tree)))
  sees = jnp.broadcast_to(left[:, None], (B, N, BLOCK))
  if start is not None:
    sees = sees & (column[:, None] >= start[:, :, None])
  mask = jnp.concatenate([sees, tree_mask], 2)
  mask = jnp.broadcast_to(mask[:, None, None], (B, 1, H // K, N, mask.shape[2]))
  mask = mask.reshape(B, 1, R, -1)
  v = jnp.where(mask.any(2)[..., None], v, 0)  # 0 times NaN is NaN
  near = jnp.einsum(
    "bkrc,bksc->bkrs", rows[:, :R].reshape(B, K, R, C), k, preferred_element_type=jnp.float32
  )
  near = jnp.where(mask, capped(near, cap), -jnp.inf)

  top = jnp.maximum(near.max(-1), far.top.max(0))
  sink = None if sinks is None else jnp.repeat(sinks.astype(jnp.float32), N).reshape(1, K, R)
  if sink is not None:
    top = jnp.maximum(top, sink)
  weight, share = jnp.exp(near - top[..., None]), jnp.exp(far.top - top[None])
  total = weight.sum(-1) + (share * far.total).sum(0)
  if sink is not None:
    total = total + jnp.exp(sink - top)
  out = (share[..., None] * far.out).sum(0) + jnp.einsum(
    "bkrs,bksc->bkrc", weight.astype(v.dtype), v, preferred_element_type=jnp.float32
  )
  out = out / jnp.where(total > 0, total, 1)[..., None]
  top = jnp.where(total > 0, top, -jnp.inf)
  return Result(
    out.reshape(B, H, N, C).astype(q.dtype), top.reshape(B, H, N), total.reshape(B, H, N)
  )
