"""Within every layer, what hardly changed is not computed again. dLLM-Cache.

Liu et al. 2025 (arXiv 2506.06295, section 3). From pass to pass most slots change little, the
prompt's least of all. So every layer keeps what it added to the stream, and adds it again. It
computes the prompt anew every K_p passes, the answer every K_r passes, and in all other passes the
few answer slots whose values turned most since the pass before: values are cheap to compute, and
where they turn, attention and MLP change, too.

The first layer is computed in full in every pass. There, keys and values depend on a slot's own
token and nothing else, so they would not tell which slots a commit elsewhere has changed.

Letters beside those of `base`: G answer slots, M slots whose values are computed, N slots of which
all is.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params, Pieces
from specjax.diffusion.caches.reuse import pieces_of, put_heads, reading
from specjax.models.cache import once, zero_after
from specjax.trees.structure import take_rows


class Kept(NamedTuple):
  """What a layer computed last for each slot.

  Attributes:
    k, v: [B, K, L, C].
    attention, mlp: [B, L, E], what they added to the stream.
  """

  k: Array
  v: Array
  attention: Array
  mlp: Array


class SimilarState(NamedTuple):
  """What rides in the loop.

  Attributes:
    answer: bool[B, L], slots of the answer; all others are of the prompt.
    passes: i32[B], how many passes the row has had.
    layers: what was kept of each layer but the first.
  """

  answer: Array
  passes: Array
  layers: tuple[Kept, ...]


class Selection(NamedTuple):
  """What a pass does in every layer but the first.

  Attributes:
    slot: i32[B, M], the slots whose values are computed.
    due: bool[B, M], the slots of which all is computed, whatever their values.
    loose: bool[B, M], the slots of which the least similar are computed.
    quota: i32[B], how many of the loose slots are.
    size: N (static). It is M, or less where no slot is due.
  """

  slot: Array
  due: Array
  loose: Array
  quota: Array
  size: int


def _put(old: Array, slot: Array, rows: Array, new: Array | bool) -> Array:
  """old [B, L, ..] with new [B, N, ..] at slot i32[B, N] where rows bool[B, N]."""
  column = jnp.where(rows, slot, old.shape[1])
  return old.at[jnp.arange(len(old))[:, None], column].set(new, mode="drop")


def turned(old: Array, new: Array) -> Array:
  """f32[B, M]: 1 - cosine between a slot's values [B, K, M, C] before and now, all heads as one.

  It is half the squared distance of unit vectors: 1 - cosine has no digits left for small turns.
  """

  def unit(v: Array) -> Array:
    v = v.swapaxes(1, 2).reshape(v.shape[0], v.shape[2], -1).astype(jnp.float32)
    return v / jnp.maximum(jnp.linalg.norm(v, axis=-1, keepdims=True), 1e-30)

  return jnp.square(unit(new) - unit(old)).sum(-1) / 2


def _renew(
  pieces: Pieces,
  params: Params,
  i: int,
  x: Array,
  kept: Kept,
  part: Selection,
  seen: Array,
  most: int,
) -> tuple[Array, Kept]:
  """Layer i over the stream x [B, L, E]; `most` bounds the quota (static)."""
  slot, due, loose, quota, size = part
  looked = take_rows(x, slot)
  everything = size == slot.shape[1]
  if everything:
    q, k, v = pieces.project(params, i, looked, slot)
  else:
    v = pieces.values(params, i, looked)
  old = jnp.take_along_axis(kept.v, slot[:, None, :, None], 2)
  turn, best = jax.lax.top_k(jnp.where(loose, turned(old, v), -1.0), most)
  chosen = (turn >= 0) & (jnp.arange(most)[None] < quota[:, None])
  if everything:
    at, rows = slot, due | _put(jnp.zeros_like(due), best, chosen, True)
  else:
    at, rows = jnp.take_along_axis(slot, best, 1), chosen
    q, k, _ = pieces.project(params, i, take_rows(looked, best), at)
  keys = put_heads(kept.k, at, rows, k)
  values = put_heads(kept.v, slot + zero_after(turn[:, :1]), due | loose, v)
  attention = _put(kept.attention, at, rows, pieces.attention(params, i, q, keys, values, seen))
  x = x + attention
  mlp = _put(kept.mlp, at, rows, pieces.mlp(params, i, take_rows(x, at)))
  return x + mlp, Kept(keys, values, attention, mlp)


@functools.cache
def similar(
  denoiser: Denoiser,
  window: int,
  prompt_every: int = 25,
  answer_every: int = 5,
  ratio: float = 0.25,
  answers: int | None = None,
) -> CanvasCache:
  """LOSSY: layers recompute the slots that changed most.

  dLLM-Cache (arXiv 2506.06295), see the top of this file. The network is reached layer by layer,
  by `Denoiser.pieces`.

  The answer is what was masked at first, and with a shifted denoiser also the slots whose states
  predict that. A pass reads one of three numbers of slots: all L where a prompt is due, G where an
  answer is, else ratio * G.

  Passes read all of the prompt now and then, of the answer more often, else what turned.

  Measured: 3.1 passes, 72.8 % right (denoising_lists)

  Args:
    prompt_every, answer_every: K_p and K_r, passes; published 25 to 100 and 5 to 8.
    ratio: rho. Of n answer slots before the end, floor(rho n) are computed; published 0.25.
    answers: the most masked slots of any row, which bounds G; by default L. In a row that has more
      of them, the last ones count as prompt.

  Raises:
    ValueError: a denoiser without pieces, or a number out of range.
  """
  pieces, shift = pieces_of(denoiser, "similar"), int(denoiser.shift)
  counts = (prompt_every, answer_every, 1 if answers is None else answers)
  if min(counts) < 1 or not 0 <= ratio <= 1:
    raise ValueError(
      "`prompt_every` and `answer_every` must be at least 1, `ratio` between 0 and 1, and "
      f"`answers` at least 1, got {prompt_every}, {answer_every}, {ratio} and {answers}."
    )
  layers = range(1, pieces.layers)

  def sizes(L: int) -> tuple[int, int]:
    """(G, the most slots that are chosen of an answer)."""
    G = L if answers is None else min(answers + shift, L)
    return G, max(int(ratio * G), 1)

  def init(params: Params, canvas: Canvas) -> SimilarState:
    B, L = canvas.tokens.shape
    answer = canvas.masked
    if shift:
      answer = answer | jnp.pad(canvas.masked, ((0, 0), (0, 1)))[:, 1:]
    answer = answer & (jnp.cumsum(answer, 1) <= sizes(L)[0])

    def first(params: Params, tokens: Array) -> Kept:
      x = pieces.embed(params, tokens)
      _, k, v = pieces.project(params, 0, x, tokens)
      return Kept(k, v, x, x)

    shape = jax.eval_shape(first, params, canvas.tokens)
    kept = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return SimilarState(answer, jnp.zeros(B, jnp.int32), (kept,) * len(layers))

  def states(params: Params, memory: SimilarState, canvas: Canvas, lo: Array, fresh: Array):
    B, L = canvas.tokens.shape
    G, most = sizes(L)
    live, inside = lo < canvas.end, canvas.inside
    answer, prompt = memory.answer & inside, ~memory.answer & inside
    prompt_due = live & (memory.passes % prompt_every == 0)
    answer_due = live & (memory.passes % answer_every == 0)
    due = (prompt & prompt_due[:, None]) | (answer & answer_due[:, None])
    loose = answer & ~answer_due[:, None]
    quotas = jnp.asarray(np.floor(ratio * np.arange(L + 1)).astype(np.int32))
    quota = jnp.take(quotas, answer.sum(1))

    every = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
    x = pieces.embed(params, canvas.tokens)
    q, k, v = pieces.project(params, 0, x, every)
    x = x + pieces.attention(params, 0, q, k, v, inside)
    x = x + pieces.mlp(params, 0, x)

    def through(size: int):
      """The other layers, `size` slots in each."""

      def run(state: tuple[Array, tuple[Kept, ...]]) -> tuple[Array, tuple[Kept, ...]]:
        (x, kept), slot = state, every
        if size < L:
          slot = jax.lax.top_k(memory.answer.astype(jnp.int32), G)[1].astype(jnp.int32)
        part = Selection(slot, take_rows(due, slot), take_rows(loose, slot), quota, size)
        found = []
        for i, old in zip(layers, kept, strict=True):
          x, new = _renew(pieces, params, i, x, old, part, inside, most)
          found.append(new)
        return x, tuple(found)

      return run

    compiled = sorted({most, G, L})
    needed = jnp.where(prompt_due.any(), L, jnp.where(answer_due.any(), G, most))
    which = (jnp.array(compiled, jnp.int32) < needed).sum()
    state = x, memory.layers
    for i, n in enumerate(compiled):
      state = once(which == i, through(n), state)
    x, kept = state
    hidden = pieces.norm(params, take_rows(x, reading(denoiser, lo, window)))
    return hidden, SimilarState(memory.answer, memory.passes + live.astype(jnp.int32), kept)

  return CanvasCache("similar", init, states, steady=False)
