"""Layers are computed anew from where attention has drifted. Elastic-Cache.

Nguyen-Tri et al. 2025 (arXiv 2510.14973). A pass computes the masked slots of the window and those
that the pass before committed; all others keep what every layer has of them. What changes, changes
more in deeper layers, and least in the token that is attended to most. So each layer compares how
the masked slots attend to that token, now and in the pass before. Where the cosine of the two is
too small, all slots are computed from the next layer on.

The first layer is computed in full in every pass, and a row that begins a window has nothing to
compare: it is computed from the second layer on.

Letters beside those of `base`: M slots that are computed where nothing drifts.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Canvas, CanvasCache, Denoiser, Params
from specjax.diffusion.caches.reuse import pieces_of, put_heads, reading
from specjax.models.cache import once
from specjax.trees.structure import take_rows


class Kept(NamedTuple):
  """What a layer computed last for each slot.

  Attributes:
    k, v: [B, K, L, C].
    x: [B, L, E], the stream behind the layer.
  """

  k: Array
  v: Array
  x: Array


class Watched(NamedTuple):
  """How a layer's masked slots attended in the last pass.

  Attributes:
    most: i32[B], the slot with a token that got most.
    weights: f32[B, L], what each masked slot gave it; 0 elsewhere.
  """

  most: Array
  weights: Array


class ElasticState(NamedTuple):
  """What rides in the loop.

  Attributes:
    masked: bool[B, L], the window's masked slots in the last pass.
    watched: of each layer.
    layers: what was kept of each layer but the first.
  """

  masked: Array
  watched: tuple[Watched, ...]
  layers: tuple[Kept, ...]


def attended(q: Array, k: Array, seen: Array) -> Array:
  """f32[B, N, L]: what queries [B, H, N, C] give keys [B, K, L, C] that are seen, bool[B, L], in
  the mean over heads."""
  B, _, N, C = q.shape
  q = q.reshape(B, k.shape[1], -1, N, C)
  scores = jnp.einsum("bkgnc,bklc->bkgnl", q, k, preferred_element_type=jnp.float32) * C**-0.5
  scores = jnp.where(seen[:, None, None, None], scores, -jnp.inf)
  return jax.nn.softmax(scores, -1).mean((1, 2))


def watch(given: Array, slot: Array, last: Watched, decoded: Array) -> tuple[Watched, Array]:
  """(what is remembered, the cosine f32[B] between the last pass's weights and now's).

  The cosine is over slots that are masked in both passes, and -1 where there is none.

  Args:
    given: f32[B, M, L], what the masked slots at `slot` i32[B, M] give each slot; 0 for others.
    decoded: bool[B, L], the slots with a token.
  """
  row = jnp.arange(len(slot))[:, None]

  def to(most: Array) -> Array:
    found = jnp.take_along_axis(given, most[:, None, None], 2)[..., 0]
    return jnp.zeros(decoded.shape).at[row, slot].set(found)

  now = to(last.most)
  both = (now > 0) & (last.weights > 0)
  a, b = jnp.where(both, now, 0.0), jnp.where(both, last.weights, 0.0)
  size = jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1)
  cosine = jnp.where(both.any(1), (a * b).sum(1) / jnp.maximum(size, 1e-30), -1.0)
  most = jnp.argmax(jnp.where(decoded, given.sum(1), -1.0), 1).astype(jnp.int32)
  return Watched(most, to(most)), cosine


@functools.cache
def elastic(denoiser: Denoiser, window: int, drift: float = 0.9) -> CanvasCache:
  """LOSSY: layers are computed anew from where attention has drifted.

  Elastic-Cache (arXiv 2510.14973), see the top of this file. The network is reached layer by layer,
  by `Denoiser.pieces`.

  Measured: 3.0 passes, 74.2 % right (denoising_lists)

  Args:
    drift: gamma, the cosine that is large enough; published 0.9.

  Raises:
    ValueError: a denoiser without pieces, or one that is causal over blocks.
  """
  pieces, shift = pieces_of(denoiser, "elastic"), int(denoiser.shift)

  def init(params: Params, canvas: Canvas) -> ElasticState:
    def first(params: Params, tokens: Array) -> Kept:
      x = pieces.embed(params, tokens)
      return Kept(*pieces.project(params, 0, x, tokens)[1:], x)

    shape = jax.eval_shape(first, params, canvas.tokens)
    kept = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    watched = Watched(jnp.zeros(len(canvas.end), jnp.int32), jnp.zeros(canvas.tokens.shape))
    none = jnp.zeros(canvas.tokens.shape, bool)
    return ElasticState(none, (watched,) * pieces.layers, (kept,) * (pieces.layers - 1))

  def states(params: Params, memory: ElasticState, canvas: Canvas, lo: Array, fresh: Array):
    B, L = canvas.tokens.shape
    inside, live = canvas.inside, lo < canvas.end
    every = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
    within = (every >= lo[:, None]) & (every < lo[:, None] + window)
    masked = canvas.masked & inside & within
    asked = masked | (memory.masked & inside)
    if shift:
      asked = asked | jnp.pad(masked, ((0, 0), (0, 1)))[:, 1:]
    M = min(2 * window + shift, L)
    slot = jnp.argsort(~asked, 1, stable=True)[:, :M].astype(jnp.int32)
    own, open_ = take_rows(asked, slot), take_rows(masked, slot)[..., None]
    decoded = inside & ~canvas.masked

    def seen(q: Array, keys: Array, last: Watched) -> tuple[Watched, Array]:
      given = jnp.where(open_, attended(q, keys, inside), 0.0)
      now, cosine = watch(given, slot, last, decoded)
      return now, live & (fresh | (cosine < drift))

    x = pieces.embed(params, canvas.tokens)
    q, k, v = pieces.project(params, 0, x, every)
    x = x + pieces.attention(params, 0, q, k, v, inside)
    x = x + pieces.mlp(params, 0, x)
    of_slots = functools.partial(jnp.take_along_axis, indices=slot[:, None, :, None], axis=2)
    now, anew = seen(of_slots(q), k, memory.watched[0])

    watched, layers = [now], []
    for i, (kept, last) in enumerate(zip(memory.layers, memory.watched[1:], strict=True), 1):

      def through(whole: bool, i: int = i, x: Array = x, anew: Array = anew):
        """The layer, over all slots or over those that are asked for."""

        def run(carry: tuple[Kept, Watched, Array]) -> tuple[Kept, Watched, Array]:
          kept, last, drifted = carry
          at, rows = (every, asked | anew[:, None]) if whole else (slot, own)
          read = take_rows(x, at)
          q, k, v = pieces.project(params, i, read, at)
          keys, values = put_heads(kept.k, at, rows, k), put_heads(kept.v, at, rows, v)
          read = read + pieces.attention(params, i, q, keys, values, inside)
          read = read + pieces.mlp(params, i, read)
          column = jnp.where(rows, at, L)
          behind = kept.x.at[jnp.arange(B)[:, None], column].set(read, mode="drop")
          now, more = seen(of_slots(q) if whole else q, keys, last)
          return Kept(keys, values, behind), now, drifted | more

        return run

      state = kept, last, anew
      all_of_them = anew.any()
      state = once(all_of_them, through(True), state)
      kept, now, anew = once(~all_of_them, through(False), state)
      x = kept.x
      watched.append(now)
      layers.append(kept)
    hidden = pieces.norm(params, take_rows(x, reading(denoiser, lo, window)))
    return hidden, ElasticState(masked, tuple(watched), tuple(layers))

  return CanvasCache("elastic", init, states, steady=False)
