"""Of masked slots those that are nearly certain are computed, of others those attended to. d2Cache.

Jiang et al. 2025 (arXiv 2509.23094). A row's first pass reads the whole canvas, and every layer
keeps its keys and values. A later pass takes few slots through all layers, writes theirs, and reads
those of all others as they were kept:

    masked     of the window the best by confidence times certainty density: how many known slots
               there are around, with the weights of a Gaussian. Known are the slots with a token,
               all that would be left of the canvas, and right of its end where its last slot is.
    committed  what the last pass filled
    rollout    of all other slots the fewest that have a share p of the last pass's attention
               rollout. Every layer mixes slots: row i of its matrix is what slot i gives each slot,
               in the mean over heads, plus 1 for itself, halved. A slot that was not computed gives
               all to itself. The column sums of the layers' product say what came from each slot.
    gaps       what lies between two of these that are `gap` slots apart, or fewer

Letters beside those of `base`: M slots that a pass takes through the layers.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks
from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches.elastic import attended
from specjax.diffusion.caches.reuse import pieces_of, put_heads, reading
from specjax.models.cache import once
from specjax.trees.structure import take_rows


class Kept(NamedTuple):
  """k, v [B, K, L, C]: what a layer computed last for each slot."""

  k: Array
  v: Array


class Computed(NamedTuple):
  """What passes compute.

  Attributes:
    layers: what was kept of each layer.
    states: [B, L, E], after the final norm, of the pass that computed the slot last.
    rollout: f32[B, L], column sums of the last pass.
  """

  layers: tuple[Kept, ...]
  states: Array
  rollout: Array


class DualState(NamedTuple):
  """What rides in the loop.

  Attributes:
    read: bool[B], rows that have had a pass.
    masked: bool[B, L], the masked slots of the last pass.
    computed: by all passes.
  """

  read: Array
  masked: Array
  computed: Computed


def density(canvas: Canvas, sigma: float) -> Array:
  """f32[B, L]: the certainty density, 0..1, see the top of this file."""
  reach = math.ceil(5 * sigma)
  known = ~canvas.masked
  last = jnp.take_along_axis(known, jnp.maximum(canvas.end - 1, 0)[:, None], 1)
  right = jnp.broadcast_to(last, (len(last), reach))
  line = [jnp.ones_like(right), jnp.where(canvas.inside, known, last), right]
  weight = np.exp(-np.square(np.arange(-reach, reach + 1) / sigma) / 2)
  share = jnp.asarray(weight / weight.sum(), jnp.float32)
  around = functools.partial(jnp.convolve, v=share, mode="valid", precision="highest")
  return jax.vmap(around)(jnp.concatenate(line, 1).astype(jnp.float32))


def between(some: Array, gap: int) -> Array:
  """bool[B, L]: the slots between two of `some`, bool[B, L], at most `gap` apart."""
  L = some.shape[1]
  slot = jnp.arange(L, dtype=jnp.int32)[None]
  left = jax.lax.cummax(jnp.where(some, slot, -gap - 1), 1)
  right = jax.lax.cummin(jnp.where(some, slot, L + gap), 1, reverse=True)
  return ~some & (right - left <= gap)


@functools.cache
def dual_adaptive(
  denoiser: Denoiser,
  window: int,
  rest: int | None = None,
  p: float = 0.1,
  sigma: float = 10.0,
  gap: int = 4,
  masks: int | None = None,
) -> CanvasCache:
  """LOSSY: passes compute masked slots, what was committed, and what attention comes from.

  d2Cache (arXiv 2509.23094), see the top of this file. The network is reached layer by layer, by
  `Denoiser.pieces`.

  With a shifted denoiser, the slot before each masked one is computed with it. That a pass computes
  no more than 2 W + `rest` slots is ours, so that their number is compiled. Where more are chosen,
  the masked ones come first, then what was committed, the rollout's from the largest on, the gaps.

  Measured: 3.0 passes, 85.8 % right (denoising_lists)

  Args:
    rest: slots beside two windows that may be computed; by default W.
    p: published 0.1.
    sigma: the Gaussian's standard deviation, slots; published 10.
    gap: published 4.
    masks: how many masked slots are; published 32, the length of a block. By default W, which are
      all, so that neither confidence nor density matters.

  Raises:
    ValueError: a denoiser without pieces, or one that is causal over blocks; a number out of range.
  """
  pieces, shift = pieces_of(denoiser, "dual_adaptive"), int(denoiser.shift)
  rest = window if rest is None else checks.whole("rest", rest)
  masks = window if masks is None else checks.whole("masks", masks, 1)
  checks.number("p", p, 0, 1)
  checks.number("sigma", sigma, above=0)
  checks.whole("gap", gap)

  def init(params: Params, canvas: Canvas) -> DualState:
    def first(params: Params, tokens: Array) -> Computed:
      x = pieces.embed(params, tokens)
      kept = Kept(*pieces.project(params, 0, x, tokens)[1:])
      return Computed((kept,) * pieces.layers, pieces.norm(params, x), jnp.zeros(tokens.shape))

    shapes = jax.eval_shape(first, params, canvas.tokens)
    computed = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    none = jnp.zeros(canvas.tokens.shape, bool)
    return DualState(jnp.zeros(len(canvas.end), bool), none, computed)

  def choose(memory: DualState, canvas: Canvas, lo: Array) -> tuple[Array, Array]:
    """(the slots i32[B, M] of a pass, which of them were chosen bool[B, M])."""
    B, L = canvas.tokens.shape
    every, row = jnp.arange(L, dtype=jnp.int32)[None], jnp.arange(B)[:, None]
    inside = canvas.inside
    open_ = canvas.masked & inside & (every >= lo[:, None]) & (every < lo[:, None] + window)
    score = jnp.where(open_, canvas.sure * density(canvas, sigma), -1.0)
    best = jax.lax.top_k(score, min(masks, window, L))[1]
    masked = open_ & jnp.zeros_like(open_).at[row, best].set(True)
    if shift:
      masked = masked | jnp.pad(masked, ((0, 0), (0, 1)))[:, 1:]
    committed = memory.masked & ~canvas.masked & inside

    share = jnp.where(inside & ~masked & ~committed, memory.computed.rollout, 0.0)
    order = jnp.argsort(-share, 1)
    place, found = jnp.argsort(order, 1).astype(jnp.int32), take_rows(share, order)
    total = jnp.cumsum(found, 1)
    large = take_rows(total - found < p * total[:, -1:], place) & (share > 0)
    gaps = between(masked | committed | large, gap)

    kinds = [masked, committed, large, gaps]
    turn = jnp.select(kinds, [jnp.zeros_like(place), jnp.ones_like(place), place + 2, L + 2], L + 3)
    slot = jnp.argsort(turn, 1)[:, : 2 * window + rest].astype(jnp.int32)
    return slot, take_rows(turn, slot) < L + 3

  def states(params: Params, memory: DualState, canvas: Canvas, lo: Array, fresh: Array):
    B, L = canvas.tokens.shape
    inside, live, row = canvas.inside, lo < canvas.end, jnp.arange(B)[:, None]
    every = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
    slot, chosen = choose(memory, canvas, lo)
    chosen = chosen & (live & memory.read)[:, None]
    new = live & ~memory.read
    # A pass over the whole canvas leaves all but the chosen slots of other rows as they are.
    asked = inside & new[:, None]
    asked = asked.at[row, jnp.where(chosen, slot, L)].set(True, mode="drop")

    def through(at: Array, rows: Array):
      """The layers, over slots i32[B, N] of which those of `rows` bool[B, N] are written."""

      def run(old: Computed) -> Computed:
        column = jnp.where(rows, at, L)
        x = pieces.embed(params, take_rows(canvas.tokens, at))
        product = jnp.broadcast_to(jnp.eye(L), (B, L, L))
        layers = []
        for i, kept in enumerate(old.layers):
          q, k, v = pieces.project(params, i, x, at)
          keys, values = put_heads(kept.k, at, rows, k), put_heads(kept.v, at, rows, v)
          x = x + pieces.attention(params, i, q, keys, values, inside)
          x = x + pieces.mlp(params, i, x)
          given = jnp.einsum("bnl,blm->bnm", attended(q, keys, inside), product)
          mixed = (given + take_rows(product, at)) / 2
          product = product.at[row, column].set(mixed, mode="drop")
          layers.append(Kept(keys, values))
        hidden = old.states.at[row, column].set(pieces.norm(params, x), mode="drop")
        return Computed(tuple(layers), hidden, product.sum(1))

      return run

    whole = new.any()
    computed = once(whole, through(every, asked), memory.computed)
    computed = once(~whole, through(slot, chosen), computed)
    hidden = take_rows(computed.states, reading(denoiser, lo, window))
    return hidden, DualState(memory.read | live, canvas.masked, computed)

  return CanvasCache("dual_adaptive", init, states, steady=False, asks=True)
