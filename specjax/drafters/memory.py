"""What a draft head keeps of the committed text: the target's newest state, or layers of its own.

Letters: B batch, T prompt length, N nodes, A rows of an accepted path, E width, S cache length, M
drafting positions of a row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Cache, Context, Evaluation, Features, Params, Verdict
from specjax.drafters.base import Examples, Head
from specjax.models import cache as kv_cache
from specjax.trees.structure import at


def row_at(x: Array, index: Array) -> Array:
  """x[b, index[b]]: x [B, N, E], index i32[B] -> [B, E]."""
  return jnp.take_along_axis(x, index[:, None, None], axis=1)[:, 0]


def rows_at(x: Array, index: Array) -> Array:
  """x[b, index[b, m]]: x [B, T, E], index i32[B, M] -> [B, M, E]."""
  return jnp.take_along_axis(x, index[:, :, None], axis=1)


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


class TextMemory(NamedTuple):
  """What layers of a head's own keep between rounds.

  Attributes:
    cache: Cache of the layers; row i is for the state after token i and the token i + 1, and its
      length is n - 1.
    last: [B, E], the layers' output at the last row: what the next draft starts from.
  """

  cache: Cache
  last: Array


def start(
  head: Head, params: Params, target_params: Params, context: Context, features: Features,
  capacity: int,
) -> Array | TextMemory:  # fmt: skip
  """What is kept after a prefill, from the features [B, T, E] of the prompt.

  The context must be wider than the prompt, as it is in the loop.
  """
  if head.memory is None:
    return before_root(features.hidden, context)
  B, T, _ = features.hidden.shape
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (B, T, T))
  following = context.tokens[:, 1 : T + 1]
  output, kv = head.memory(params, target_params, features, following, position, mask)
  cache = kv_cache.allocate(kv, context.length - 1, capacity)
  return TextMemory(cache, before_root(output, context))


def update(
  head: Head, params: Params, target_params: Params, state: Any,
  evaluation: Evaluation, verdict: Verdict, rows: Array,
) -> Array | TextMemory:  # fmt: skip
  """What is kept after a round, of which `rows` i32[B] nodes were committed.

  Layers always run A rows, those of the accepted path. What was drafted from guessed states never
  enters.
  """
  if head.memory is None:
    return newest(evaluation.features.hidden, verdict, rows, state)
  B, A = verdict.path.shape
  accepted = jax.tree.map(
    lambda x: jnp.take_along_axis(x, verdict.path[:, :, None], 1), evaluation.features
  )
  step = jnp.broadcast_to(jnp.arange(A, dtype=jnp.int32), (B, A))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((A, A), bool)), (B, A, A))
  position = state.cache.length[:, None] + step
  output, kv = head.memory(
    params, target_params, accepted, verdict.tokens, position, mask, state.cache
  )
  last = row_at(output, jnp.maximum(rows - 1, 0))
  # Adds nothing, but makes the write wait for the layers' own reads: else XLA copies the cache.
  read = jnp.minimum((last[:, 0] > 0).astype(jnp.int32), 0)
  return TextMemory(
    kv_cache.commit(state.cache, kv, step, rows + read),
    jnp.where(rows[:, None] > 0, last, state.last),
  )


def last(state: Array | TextMemory) -> Array:
  """[B, E], what a draft starts from."""
  return state.last if isinstance(state, TextMemory) else state


def over_text(
  head: Head, params: Params, target_params: Params, examples: Examples, mask: Array
) -> tuple[Array, KV | None]:
  """What would be kept at every position of a text: ([B, T, E], KV of the layers).

  Args:
    mask: bool[B, T, T], what each token of the text sees.
  """
  if head.memory is None:
    return examples.features.hidden, None
  following = jnp.pad(examples.tokens[:, 1:], ((0, 0), (0, 1)))
  return head.memory(params, target_params, examples.features, following, examples.position, mask)
