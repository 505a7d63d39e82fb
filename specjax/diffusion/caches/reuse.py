"""The frame of most caches: now and then the whole canvas is read, else a part of it.

A denoiser sees both sides, so every commit changes the keys and values of all slots a little.
Caches differ in which of these changes they leave out.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Earlier, Params, Pieces
from specjax.models.cache import once, renew, zero_after
from specjax.trees.structure import rows_where, take_rows


def reading(denoiser: Denoiser, lo: Array, window: int) -> Array:
  """i32[B, W]: the slots whose states predict the window's; slot 0 predicts itself."""
  position = lo[:, None] + jnp.arange(window, dtype=jnp.int32)[None]
  return jnp.maximum(position - int(denoiser.shift), 0)


def of_whole_canvas(denoiser: Denoiser, name: str) -> None:
  """ValueError where slots do not all see each other, since `Earlier` does not part them."""
  if denoiser.masks_last:
    raise ValueError(
      f"`cache` must be none or streamed for a denoiser that reads masks last, got {name!r}."
    )
  if denoiser.block is not None:
    raise ValueError(
      "`cache` must be none or committed for a denoiser that is causal over blocks of "
      f"{denoiser.block}, got {name!r}."
    )


def pieces_of(denoiser: Denoiser, name: str) -> Pieces:
  """Its layers; ValueError where they cannot be reached, or it is causal over blocks."""
  of_whole_canvas(denoiser, name)
  if denoiser.pieces is None:
    raise ValueError(
      f"denoiser.pieces=None: the cache {name} goes through the layers one by one "
      "and accepts no guided or smoothed denoiser, nor one that is no network."
    )
  return denoiser.pieces


def put_heads(old: Array, slot: Array, rows: Array, new: Array) -> Array:
  """old [B, K, L, C] with new [B, K, N, C] at slot i32[B, N] where rows bool[B, N]."""
  column = jnp.where(rows, slot, old.shape[2])
  return old.at[jnp.arange(len(old))[:, None], :, column].set(new.swapaxes(1, 2), mode="drop")


def read(
  denoiser: Denoiser, window: int, params: Params, canvas: Canvas, lo: Array
) -> tuple[Array, Any]:
  """One pass over all slots: (states [B, W, E] of the window, kv)."""
  B, L = canvas.tokens.shape
  position = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
  soft = () if denoiser.soften is None else (canvas.soft,)
  hidden, kv = denoiser.evaluate(params, canvas.tokens, position, canvas.inside, None, *soft)
  index = reading(denoiser, lo, window)
  return jnp.take_along_axis(hidden, index[..., None], 1), kv


def after_prefix(
  denoiser: Denoiser, params: Params, prefix: Any, canvas: Canvas, start: Array, count: int
) -> tuple[Array, Any]:
  """(states [B, count, E], kv) of the slots from `start` i32[B] on, which see a prefix, too.

  `prefix` has the kv of slots and their number, `length` i32[B]; None is no prefix. The last of the
  `count` slots (static) may lie past the canvas.
  """
  position = start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
  inner = jnp.minimum(position, canvas.tokens.shape[1] - 1)
  tokens = jnp.take_along_axis(canvas.tokens, inner, 1)
  soft = () if denoiser.soften is None else (take_rows(canvas.soft, inner),)
  earlier = None
  if prefix is not None:
    S = jax.tree.leaves(prefix.kv)[0].shape[2]
    visible = jnp.arange(S, dtype=jnp.int32)[None] < prefix.length[:, None]
    earlier = Earlier(prefix.kv, visible)
  seen = position < canvas.end[:, None]
  return denoiser.evaluate(params, tokens, position, seen, earlier, *soft)


class KVState(NamedTuple):
  """What such caches carry.

  Attributes:
    kv: keys and values, arrays [B, any, L, any].
    passes: i32[B], how many passes the row has had.
    last: what is remembered of the pass before; by default i32[B], where the window began.
  """

  kv: Any
  passes: Array
  last: Any


class Reread(NamedTuple):
  """What is read again in a pass.

  Attributes:
    start: i32[B]. Slots start..start + N - 1 are read.
    renewed: bool[B, L]. The slots among them that get new keys and values; all others keep the old.
    inside: bool[B, L]. The slots that may be attended to.
  """

  start: Array
  renewed: Array
  inside: Array


def reread(
  denoiser: Denoiser,
  window: int,
  count: int,
  params: Params,
  kv: Any,
  canvas: Canvas,
  lo: Array,
  rows: Array,
  part: Reread,
) -> tuple[Array, Any]:
  """A pass over `count` = N slots: (states [B, W, E] of the window, kv).

  Args:
    rows: bool[B], the rows whose kv is written.
  """
  position = part.start[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
  tokens, renewed, inside = (
    jnp.take_along_axis(x, position, 1) for x in (canvas.tokens, part.renewed, part.inside)
  )
  earlier = Earlier(kv, part.inside & ~part.renewed)
  soft = () if denoiser.soften is None else (take_rows(canvas.soft, position),)
  hidden, new = denoiser.evaluate(params, tokens, position, renewed & inside, earlier, *soft)
  written = renewed & rows[:, None] & (zero_after(hidden[:, :1, 0]) == 0)
  kv = renew(kv, new, part.start, written)
  index = reading(denoiser, lo, window) - part.start[:, None]
  return jnp.take_along_axis(hidden, index[..., None], 1), kv


class Picked(NamedTuple):
  """A pass over N slots from anywhere.

  Attributes:
    slot: i32[B, N], in order.
    own: bool[B, N], those that were asked for; the others are not seen.
    states: [B, W, E] of the window, whatever they are where a slot was not asked for.
    kv: of these N.
  """

  slot: Array
  own: Array
  states: Array
  kv: Any


def pick(
  denoiser: Denoiser,
  window: int,
  count: int,
  params: Params,
  canvas: Canvas,
  lo: Array,
  asked: Array,
  earlier: Earlier | None = None,
) -> Picked:
  """A pass over `count` = N slots, among which are all that are `asked` for, bool[B, L]."""
  slot = jnp.argsort(~asked, 1, stable=True)[:, :count].astype(jnp.int32)
  own = take_rows(asked, slot)
  soft = () if denoiser.soften is None else (take_rows(canvas.soft, slot),)
  tokens = take_rows(canvas.tokens, slot)
  hidden, kv = denoiser.evaluate(params, tokens, slot, own, earlier, *soft)
  place = take_rows(jnp.cumsum(asked, 1) - 1, reading(denoiser, lo, window))
  return Picked(slot, own, take_rows(hidden, jnp.clip(place, 0, count - 1)), kv)


def in_lengths(lengths: int, asked: Array, run: Callable[[int, Any], Any], state: Any) -> Any:
  """run(N, state) for the least of `lengths` compiled N that holds a row's `asked`, bool[B, L]."""
  most, L = asked.sum(1).max(), asked.shape[1]
  counts = sorted({-(-L * i // lengths) for i in range(1, lengths + 1)})
  for least, count in itertools.pairwise((0, *counts)):
    wanted = (most > least) & (most <= count)
    state = once(wanted, functools.partial(run, count), state)
  return state


def _began(last: Any, canvas: Canvas, lo: Array, fresh: Array, found: Array) -> Array:
  return lo


def reusing(
  name: str,
  denoiser: Denoiser,
  window: int,
  stale: Callable[..., Array],
  again: Callable[..., Any],
  *,
  steady: bool = True,
  remember: Callable[..., Any] = _began,
) -> CanvasCache:
  """A cache that reads the whole canvas of a row where it is stale, and else what `again` reads.

  Rows stay independent: where a batch holds rows of both kinds, both passes are run.

  Args:
    stale: (fresh bool[B], memory, lo) -> bool[B]; True in a row's first pass.
    again: (params, kv, canvas, lo, last, rows bool[B]) -> (states [B, W, E], kv); see `KVState`.
    steady: see `Cache`.
    remember: (last, None before the first pass; canvas, lo, fresh, states) -> last.

  Raises:
    ValueError: see `of_whole_canvas`.
  """
  of_whole_canvas(denoiser, name)

  def init(params: Params, canvas: Canvas) -> KVState:
    lo = jnp.zeros(len(canvas.end), jnp.int32)

    def first(params: Params, canvas: Canvas) -> KVState:
      found, kv = read(denoiser, window, params, canvas, lo)
      return KVState(kv, lo, remember(None, canvas, lo, lo == 0, found))

    shapes = jax.eval_shape(first, params, canvas)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  def states(params: Params, memory: KVState, canvas: Canvas, lo: Array, fresh: Array):
    live = lo < canvas.end
    whole = stale(fresh, memory, lo) & live
    part = live & ~whole

    def read_all(kv: Any):
      found, new = read(denoiser, window, params, canvas, lo)
      rows = jnp.broadcast_to(whole[:, None], canvas.tokens.shape)
      return found, renew(kv, new, jnp.zeros_like(lo), rows)

    def read_part(kv: Any):
      return again(params, kv, canvas, lo, memory.last, part)

    def put(rows: Array, run: Callable[[Any], tuple[Array, Any]], found: Array, kv: Any):
      """The states and the kv, after the pass of some rows."""

      def turn(state: tuple[Array, Any]) -> tuple[Array, Any]:
        found, kv = state
        new, kv = run(kv)
        return jnp.where(rows[:, None, None], new, found), kv

      return once(rows.any(), turn, (found, kv))

    shape = jax.eval_shape(read_all, memory.kv)[0]
    found, kv = put(whole, read_all, jnp.zeros(shape.shape, shape.dtype), memory.kv)
    found, kv = put(part, read_part, found, kv)
    passes = memory.passes + live.astype(jnp.int32)
    last = remember(memory.last, canvas, lo, fresh, found)
    return found, KVState(kv, passes, rows_where(live, last, memory.last))

  return CanvasCache(name, init, states, steady)
