"""Finished blocks of a denoiser that is causal over blocks are read once, like a target's prefix.

BD3-LM (Arriola et al. 2025, arXiv 2503.09573), Fast-dLLM v2 (Wu et al. 2025, arXiv 2509.26328),
SDAR (Cheng et al. 2025, arXiv 2510.06303). No slot sees a later block, so the keys and values of a
finished block never change: they lie in a cache such as an autoregressive target's, and nothing is
left out. The published programs commit a finished block by a pass of its own. Here the first pass
of the next block reads both, so that every round is one pass and no pass is added.

Rows of a batch begin their blocks at rounds of their own: of eight rows with seven rounds a block
one begins on average. So the pass over two blocks has a program for few rows, too.

Letters beside those of `base`: D slots of the denoiser's blocks, S rows of the cache, a multiple of
D, M rows of the batch that a pass is over.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax import base
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches.reuse import after_prefix, reading
from specjax.kernels.platform import mesh_axis
from specjax.models import cache as kv_cache
from specjax.models.writing import rows_at


class Committed(NamedTuple):
  """What rides in the loop.

  Attributes:
    kv: keys and values of the finished blocks, arrays [B, K, S, C].
    length: i32[B], the slots of these blocks.
    before: [B, 1, E], the state of the last of these slots, from which a shifted denoiser predicts
      the first slot of the next block.
  """

  kv: Any
  length: Array
  before: Array


def few(B: int) -> int:
  """How many rows of B the shorter program for the pass over two blocks has; B where none is.

  With a quarter, of 8 rows with 7 rounds a block one round in ten needs the longer one. On a mesh
  rows do not leave their devices.
  """
  return B if mesh_axis("data", B) else -(-B // 4)


def _commit(memory: Committed, hidden: Array, new: Any, rows: Array, D: int) -> Any:
  """The kv with the first D slots of `new`, of states `hidden`, appended in `rows` bool[B]."""
  path = jnp.broadcast_to(jnp.arange(D, dtype=jnp.int32), (len(rows), D))
  count = jnp.where(rows, D, 0) + kv_cache.zero_after(hidden[:, 0, 0])

  def append(old: base.KV, new: base.KV) -> base.KV:
    return kv_cache.commit(base.Cache(old, memory.length), new, path, count).kv

  # A guided denoiser has two.
  return jax.tree.map(append, memory.kv, new, is_leaf=lambda x: isinstance(x, base.KV))


@functools.cache
def committed(denoiser: Denoiser, window: int) -> CanvasCache:
  """EXACT: finished blocks are read once, by models that are causal over blocks.

  A pass reads the D slots of the block; where the block before has just been finished, the 2 D
  slots of both; and all of the canvas where more than that is not committed, as in the first pass
  of a row with a prompt, or where blocks between holes were given. Rows of a batch are independent:
  where it holds rows of several kinds, several passes are run, that over 2 D slots for the rows
  that need it alone where they are few.

  The states are those of `none` up to rounding, since the passes have other shapes.

  Measured: 3.8 passes (block_diffusion)

  Raises:
    ValueError: a denoiser without blocks of its own.
  """
  D = denoiser.block
  if D is None:
    raise ValueError(
      "cache='committed' needs a denoiser that is causal over blocks: this one sees the whole "
      "canvas, so no block stays as it is."
    )

  evaluate = functools.partial(after_prefix, denoiser)

  def capacity(canvas: Canvas) -> int:
    return -(-canvas.tokens.shape[1] // D) * D

  def init(params: Params, canvas: Canvas) -> Committed:
    zero = jnp.zeros_like(canvas.end)
    run = functools.partial(evaluate, count=capacity(canvas))
    hidden, kv = jax.eval_shape(run, params, None, canvas, zero)
    kv = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), kv)
    return Committed(kv, zero, jnp.zeros((len(zero), 1, hidden.shape[2]), hidden.dtype))

  def states(params: Params, memory: Committed, canvas: Canvas, lo: Array, fresh: Array):
    live, begin = lo < canvas.end, lo - lo % D
    missing, S, B = begin - memory.length, capacity(canvas), len(lo)

    def through(count: int, rows: Array, M: int = B):
      """The pass of `rows`, of which there are M at most, over the `count` slots that end with the
      block, or over all S."""
      whole = count == S

      def turn(state: tuple[Array, Committed]) -> tuple[Array, Committed]:
        found, memory = state
        start = jnp.zeros_like(lo) if whole else jnp.maximum(begin + D - count, 0)
        read = None if whole else memory, canvas, start
        if M == B:
          hidden, new = evaluate(params, *read, count)
        else:
          index = jnp.argsort(~rows, stable=True)[:M]
          kept, texts, first = rows_at(read, index)
          own = evaluate(denoiser.rows(params, index), kept, texts, first, count)
          hidden, new = jax.tree.map(
            lambda x: jnp.zeros((B, *x.shape[1:]), x.dtype).at[index].set(x), own
          )
        known = jnp.concatenate([memory.before, hidden], 1)  # the state of slot start - 1 is first
        index = jnp.clip(reading(denoiser, lo, window) - start[:, None] + 1, 0, count)
        mine = rows[:, None, None]
        found = jnp.where(mine, jnp.take_along_axis(known, index[..., None], 1), found)
        if whole:
          kv = jax.tree.map(lambda x, old: jnp.where(mine[..., None], x, old), new, memory.kv)
        elif count > D:
          kv = _commit(memory, hidden, new, rows, D)
        else:
          return found, memory
        last = jnp.clip(begin - start, 0, count)[:, None, None]
        before = jnp.take_along_axis(known, last, 1)
        return found, Committed(
          kv, jnp.where(rows, begin, memory.length), jnp.where(mine, before, memory.before)
        )

      return turn

    E = memory.before.shape[2]
    state = jnp.zeros((B, window, E), memory.before.dtype), memory
    many, both, one = (rows & live for rows in (missing > D, missing == D, missing == 0))
    M, number = few(B), both.sum(dtype=jnp.int32)
    passes = [(many.any(), through(S, many)), (one.any(), through(D, one))]
    if M < B:
      passes.append(((number > 0) & (number <= M), through(2 * D, both, M)))
    passes.append((number > (M if M < B else 0), through(2 * D, both)))
    for wanted, run in passes:
      state = kv_cache.once(wanted, run, state)
    return state

  return CanvasCache("committed", init, states)
