"""What a draft head knows of the committed text: the target's newest state, or layers of its own.

Letters: B batch, T prompt length, N nodes, A rows of an accepted path, E width, S cache length.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Context, Evaluation, Examples, Features, Verdict
from specjax.models import cache as kv_cache
from specjax.trees.structure import at


def row_at(x: Array, index: Array) -> Array:
  """x[b, index[b]]: x [B, N, E], index i32[B] -> [B, E]."""
  return jnp.take_along_axis(x, index[:, None, None], axis=1)[:, 0]


def rows_at(x: Array, index: Array) -> Array:
  """x[b, index[b, m]]: x [B, T, E], index i32[B, M] -> [B, M, E]."""
  return jnp.take_along_axis(x, index[:, :, None], axis=1)


def token_at(examples: Examples, ahead: int) -> Array:
  """i32[B, M]: the token `ahead` positions after each cut point; 0 past the end of the row."""
  T = examples.tokens.shape[1]
  index = examples.at + ahead
  return jnp.where(index < T, at(examples.tokens, jnp.minimum(index, T - 1)), 0)


def before_root(x: Array, context: Context) -> Array:
  """The state that predicted the root, from those of a prompt, [B, T, E] -> [B, E].

  A prompt of one token has none; its own is as good as any.
  """
  return row_at(x, jnp.maximum(context.length - 2, 0))


def newest(x: Array, verdict: Verdict, rows: Array, old: Array) -> Array:
  """The state that predicted the new root, from those of the nodes; [B, N, E] -> [B, E].

  Args:
    rows: i32[B], nodes committed; where 0, `old` [B, E] stays.
  """
  last = at(verdict.path, jnp.maximum(rows[:, None] - 1, 0))[:, 0]
  return jnp.where(rows[:, None] > 0, row_at(x, last), old)


class TextLayers(NamedTuple):
  """What draft layers keep between rounds.

  Attributes:
    cache: their own, row i for the state after token i and the token i + 1; length n - 1.
    last: [B, E], their output at the last row: what the next draft starts from.
  """

  cache: Cache
  last: Array


Run = Callable[..., tuple[Array, KV]]
"""(features [B, N, E], following i32[B, N], position i32[B, N], mask, cache or None) ->
(output [B, N, E], KV): draft layers over pairs of a target state and the token that follows it."""


def remember(run: Run, context: Context, features: Features, capacity: int) -> TextLayers:
  """The memory after a prefill, from the features [B, T, E] of the prompt.

  The context must be wider than the prompt, as it is in the loop.
  """
  B, T, _ = features.hidden.shape
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (B, T, T))
  output, kv = run(features, context.tokens[:, 1 : T + 1], position, mask, None)
  return TextLayers(
    kv_cache.allocate(kv, context.length - 1, capacity), before_root(output, context)
  )


def extend(run: Run, memory: TextLayers, evaluation: Evaluation, verdict: Verdict, rows: Array):
  """The memory after a round: the pairs of the accepted path run through the layers.

  A rows are always run, of which `rows` i32[B] count. What was drafted from guessed states never
  enters.
  """
  B, A = verdict.path.shape
  accepted = jax.tree.map(
    lambda x: jnp.take_along_axis(x, verdict.path[:, :, None], 1), evaluation.features
  )
  step = jnp.broadcast_to(jnp.arange(A, dtype=jnp.int32), (B, A))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((A, A), bool)), (B, A, A))
  position = memory.cache.length[:, None] + step
  output, kv = run(accepted, verdict.tokens, position, mask, memory.cache)
  last = row_at(output, jnp.maximum(rows - 1, 0))
  # Adds nothing, but makes the write wait for the layers' own reads: else XLA copies the cache.
  read = jnp.minimum((last[:, 0] > 0).astype(jnp.int32), 0)
  return TextLayers(
    kv_cache.commit(memory.cache, kv, step, rows + read),
    jnp.where(rows[:, None] > 0, last, memory.last),
  )
