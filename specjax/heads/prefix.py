"""What a draft head keeps of the committed text: the target's newest state, or layers of its own.

Letters: B batch, T prompt length, N nodes, A rows of an accepted path, E width.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from specjax import bucketing
from specjax.base import KV, Cache, Context, Draft, Evaluation, Features, Params, Target, Verdict
from specjax.heads.base import Examples
from specjax.heads.few_bits import LARGE
from specjax.kernels.platform import platform
from specjax.models import cache as kv_cache
from specjax.models.weights import count_parameters
from specjax.trees.structure import gather, take_rows

WIDTHS = (2, 4)  # rows for which a large head's layers are compiled too, on a CPU


def prefilled(
  lm: Target, params: Params, context: Context, features: Features, capacity: int
) -> Cache:
  """The cache of a small LM that has read the prompt, for the arguments of `InitDrafter`."""
  prompt = context.tokens[:, : features.hidden.shape[1]]
  return lm.prefill(params, prompt, context.length, capacity)[0]


def reread(
  lm: Target, params: Params, cache: Cache, draft: Draft, verdict: Verdict, rows: Array
) -> Cache:
  """The cache of a small LM after a pass over the accepted path, `rows` i32[B] of it."""
  B, A = verdict.path.shape
  step = jnp.broadcast_to(jnp.arange(A, dtype=jnp.int32), (B, A))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((A, A), bool)), (B, A, A))
  evaluation = lm.evaluate(params, cache, gather(draft.tokens, verdict.path), step, mask)
  return lm.commit(cache, evaluation.kv, step, rows)


def before_root(x: Array, context: Context) -> Array:
  """The state that predicted the root, from those of a prompt, [B, T, E] -> [B, E].

  A prompt of one token has none and gives the state of that token in its place.
  """
  return gather(x, jnp.maximum(context.length - 2, 0)[:, None])[:, 0]


def newest(x: Array, verdict: Verdict, rows: Array, old: Array) -> Array:
  """The state that predicted the new root, from those of the nodes; [B, N, E] -> [B, E].

  Args:
    rows: i32[B], nodes committed; where 0, `old` [B, E] stays.
  """
  last = gather(verdict.path, jnp.maximum(rows[:, None] - 1, 0))
  return jnp.where(rows[:, None] > 0, gather(x, last)[:, 0], old)


class RunText(Protocol):
  """A head's own layers over committed text: features [B, N, E] of tokens, and the tokens that
  follow them -> (output [B, N, any], KV). For the rest see `models.layers.Layers`."""

  def __call__(
    self,
    params: Params,
    target_params: Params,
    features: Features,
    following: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
  ) -> tuple[Array, KV]: ...


class TextMemory(NamedTuple):
  """What layers of a head's own keep between rounds.

  Attributes:
    cache: Cache of the layers, of length n - 1; row i is for the state after token i and token
      i + 1.
    last: [B, E], the layers' output at the last row, from which the next draft starts.
  """

  cache: Cache
  last: Array


def start(
  memory: RunText | None,
  params: Params,
  target_params: Params,
  context: Context,
  features: Features,
  capacity: int,
) -> Array | TextMemory:
  """What is kept after a prefill, from the features [B, T, E] of the prompt.

  The context must be wider than the prompt, as it is in the loop.
  """
  if memory is None:
    return before_root(features.hidden, context)
  B, T, _ = features.hidden.shape
  position = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (B, T, T))
  following = context.tokens[:, 1 : T + 1]
  output, kv = memory(params, target_params, features, following, position, mask)
  cache = kv_cache.allocate(kv, context.length - 1, capacity)
  return TextMemory(cache, before_root(output, context))


def update(
  memory: RunText | None,
  params: Params,
  target_params: Params,
  state: Any,
  evaluation: Evaluation,
  verdict: Verdict,
  rows: Array,
) -> Array | TextMemory:
  """What is kept after a round, of which `rows` i32[B] nodes were committed.

  Layers run over the target's states at the accepted path; what was drafted from guessed states is
  not kept. They run A rows, or as many as were accepted where a head is large and runs on a CPU.
  """
  if memory is None:
    return newest(evaluation.features.hidden, verdict, rows, state)
  B, A = verdict.path.shape
  accepted = take_rows(evaluation.features, verdict.path)
  step = jnp.broadcast_to(jnp.arange(A, dtype=jnp.int32), (B, A))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((A, A), bool)), (B, A, A))
  position = state.cache.length[:, None] + step

  def read(width: int) -> tuple[Array, KV]:
    features = jax.tree.map(lambda x: x[:, :width], accepted)
    tokens, place, sees = verdict.tokens[:, :width], position[:, :width], mask[:, :width, :width]
    return memory(params, target_params, features, tokens, place, sees, state.cache)

  large = platform() == "cpu" and count_parameters(params) >= LARGE
  widths = tuple(w for w in WIDTHS if large and w < A)
  output, kv = bucketing.narrowest(widths, A, rows, read)
  last = gather(output, jnp.maximum(rows - 1, 0)[:, None])[:, 0]
  return TextMemory(
    kv_cache.commit(state.cache, kv, step, rows + kv_cache.zero_after(last[:, 0])),
    jnp.where(rows[:, None] > 0, last, state.last),
  )


def last(state: Array | TextMemory) -> Array:
  """[B, E], the state from which a draft starts."""
  return state.last if isinstance(state, TextMemory) else state


def over_text(
  memory: RunText | None, params: Params, target_params: Params, examples: Examples, mask: Array
) -> tuple[Array, KV | None]:
  """What would be kept at every position of a text: ([B, T, E], KV of the layers).

  Args:
    mask: bool[B, T, T], what each token of the text sees.
  """
  if memory is None:
    return examples.features.hidden, None
  following = jnp.pad(examples.tokens[:, 1:], ((0, 0), (0, 1)))
  return memory(params, target_params, examples.features, following, examples.position, mask)
