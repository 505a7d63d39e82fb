"""A draft model that reads another model's tokens, each spelled in tokens of its own.

Letters: B batch, N nodes, T prompt length, S cache length, A rows of an accepted path, V tokens of
the target, M the most tokens of the draft model that spell one of them, Z those before a text, W
tokens that both have.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Cache, Evaluation, Features, Params, Target
from specjax.trees.structure import gather


class Bridge(NamedTuple):
  """The params of `reading` and `common_tokens`; `data.bridge` makes them of two tokenizers.

  Attributes:
    lm: the draft model's params.
    pieces: i32[V, M], the tokens of the draft model that spell each token of the target.
    count: i32[V], how many of them do, 1 at least; others are padding.
    start: i32[Z], what the draft model reads before a text.
    ours, theirs: i32[W], the target's and the draft model's ids of the tokens that both have. Each
      of `ours` is spelled by its one of `theirs`.
  """

  lm: Params
  pieces: Array
  count: Array  # type: ignore[assignment]  # hides the tuple's method
  start: Array
  ours: Array
  theirs: Array


class SpelledCache(NamedTuple):
  """The draft model's cache, whose length is counted in tokens of the target.

  Attributes:
    kv: the draft model's, rows of its own tokens.
    length: i32[B], tokens of the target.
    ends: i32[B, S + 1], the rows of kv that the first s tokens of the target have.
  """

  kv: Any
  length: Array
  ends: Array

  @property
  def own(self) -> Cache:
    """The draft model's cache as it knows it."""
    return Cache(self.kv, gather(self.ends, self.length[:, None])[:, 0])


def packed(x: Array, count: Array) -> Array:
  """The first count i32[B, N] of each x [B, N, M] one after the other, [B, N M], then 0."""
  B, N, M = x.shape
  piece = jnp.arange(M, dtype=jnp.int32)[None, None]
  place = (jnp.cumsum(count, 1, dtype=jnp.int32) - count)[..., None] + piece
  place = jnp.where(piece < count[..., None], place, N * M).reshape(B, -1)
  row = jnp.arange(B, dtype=jnp.int32)[:, None]
  return jnp.zeros((B, N * M), x.dtype).at[row, place].set(x.reshape(B, -1), mode="drop")


@functools.cache
def reading(lm: Target) -> Target:
  """The model behind texts in the target's tokens; its logits are of its own vocabulary.

  A token of the target is as many of its own, each seeing those before it and what is above. Nodes
  that are all spelled by one token take the pass that they would take without a bridge.
  """

  def spelled(params: Bridge, tokens: Array) -> tuple[Array, Array]:
    return params.pieces.at[tokens].get(mode="clip"), params.count.at[tokens].get(mode="clip")

  def prefill(params: Bridge, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    B, T = tokens.shape
    Z, M = len(params.start), params.pieces.shape[1]
    pieces, count = spelled(params, tokens)
    before = jnp.broadcast_to(params.start[None], (B, Z))
    text = jnp.concatenate([before, packed(pieces, count)], 1)
    ends = Z + jnp.pad(jnp.cumsum(count, 1, dtype=jnp.int32), ((0, 0), (1, capacity - T)))
    # All but one token are cached: up to the first that spells the prompt's last.
    read = gather(ends, length[:, None] - 1)[:, 0] + 1
    cache, seen = lm.prefill(params.lm, text, read, capacity * M + Z, hidden_layers)
    last = ends[:, 1 : T + 1] - 1
    seen = jax.tree.map(lambda x: gather(x, last), seen)
    return SpelledCache(cache.kv, length - 1, ends), seen

  def evaluate(
    params: Bridge, cache: SpelledCache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    B, N = tokens.shape
    pieces, count = spelled(params, tokens)
    M = pieces.shape[2]

    def narrow() -> tuple[Features, Any]:
      found = lm.evaluate(params.lm, cache.own, pieces[..., 0], depth, mask, hidden_layers)

      def spread(x: Array) -> Array:  # of every node the first of M rows
        x = jnp.pad(x[..., None, :], [*[(0, 0)] * (x.ndim - 1), (0, M - 1), (0, 0)])
        return x.reshape(*x.shape[:-3], N * M, x.shape[-1])

      return found.features, jax.tree.map(spread, found.kv)

    def wide() -> tuple[Features, Any]:
      piece = jnp.arange(M, dtype=jnp.int32)
      itself = jnp.eye(N, dtype=bool)[None]
      above = mask & ~itself
      place = jnp.where(above, count[:, None], 0).sum(2, dtype=jnp.int32)[..., None]
      place = place + piece[None, None]
      live = piece[None, None] < count[..., None]
      seen = above[:, :, None, :, None] & live[:, None, None]
      own = piece[:, None] >= piece[None]
      seen |= itself[:, :, None, :, None] & own[None, None, :, None]
      found = lm.evaluate(
        params.lm, cache.own, pieces.reshape(B, -1), place.reshape(B, -1),
        seen.reshape(B, N * M, N * M), hidden_layers,
      )  # fmt: skip
      last = jnp.arange(N, dtype=jnp.int32)[None] * M + count - 1
      return jax.tree.map(lambda x: gather(x, last), found.features), found.kv

    features, kv = narrow() if M == 1 else lax.cond((count == 1).all(), narrow, wide)
    return Evaluation(lm.head(params.lm, features.hidden), features, (kv, count))

  def commit(cache: SpelledCache, kv: tuple[Any, Array], path: Array, rows: Array) -> SpelledCache:
    of_nodes, count = kv
    B, A = path.shape
    M = jax.tree.leaves(of_nodes)[0].shape[-2] // count.shape[1]
    step = jnp.arange(A, dtype=jnp.int32)[None]
    taken = jnp.where(step < rows[:, None], gather(count, path), 0)
    nodes = path[..., None] * M + jnp.arange(M, dtype=jnp.int32)[None, None]
    own = lm.commit(cache.own, of_nodes, packed(nodes, taken), taken.sum(1, dtype=jnp.int32))
    ends = cache.own.length[:, None] + jnp.cumsum(taken, 1, dtype=jnp.int32)
    place = jnp.where(step < rows[:, None], cache.length[:, None] + 1 + step, cache.ends.shape[1])
    row = jnp.arange(B, dtype=jnp.int32)[:, None]
    ends = cache.ends.at[row, place].set(ends, mode="drop")
    return SpelledCache(own.kv, cache.length + rows, ends)

  return Target(
    lm.vocab_size, prefill, evaluate, commit, lambda params, hidden: lm.head(params.lm, hidden)
  )


@functools.cache
def common_tokens(lm: Target, vocab_size: int) -> Target:
  """A draft model of another vocabulary drafts the tokens that the target has, too.

  Timor et al. 2025 (arXiv 2502.05202, algorithm 4, token-level intersection). Its distribution
  over the tokens that both have, renormalised, is one over the target's tokens: whatever is drawn
  from it is a draft like any other, and an exact verifier corrects for it. It reads a token of the
  target as the tokens of its own that spell it, so it follows any text. Params are a `Bridge`.

  Args:
    lm: the draft model.
    vocab_size: V, the target's.
  """
  own = reading(lm)

  def said(params: Bridge, logits: Array) -> Array:
    every = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    return every.at[..., params.ours].set(logits[..., params.theirs])

  def evaluate(params: Bridge, *rest: Any, **more: Any) -> Evaluation:
    found = own.evaluate(params, *rest, **more)
    return found._replace(logits=said(params, found.logits))

  return Target(
    vocab_size, own.prefill, evaluate, own.commit,
    lambda params, hidden: said(params, lm.head(params.lm, hidden)),
  )  # fmt: skip
