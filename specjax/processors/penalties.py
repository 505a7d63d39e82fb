"""Tokens that were said before become less likely.

Letters: B batch, N tree nodes, A = D + 1, V vocabulary.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Processor


class Penalties(NamedTuple):
  """The strength of each penalty, f32[B]; the params of `penalties`. The defaults are no penalty.

  Attributes:
    repetition: divides the positive and multiplies the negative logits of tokens in the prompt or
      the new text. Keskar et al. 2019 (arXiv 1909.05858, section 4.1).
    presence: is subtracted from the logits of tokens in the new text.
    frequency: is subtracted likewise, once for every time that the token was said.
  """

  repetition: Any = 1.0
  presence: Any = 0.0
  frequency: Any = 0.0


class Counts(NamedTuple):
  """The state: the tokens of the prompt, bool[B, V], and how often each is in the new text."""

  prompted: Array
  said: Array  # f32[B, V]


def _add(count: Array, tokens: Array, which: Array) -> Array:
  """count [B, .., V] with `tokens` i32[B, .., M] counted where `which` bool[B, .., M]."""
  size = count.shape[-1]
  flat = count.reshape(-1, size)
  tokens, which = tokens.reshape(len(flat), -1), which.reshape(len(flat), -1)
  row = jnp.arange(len(flat))[:, None]
  return flat.at[row, tokens].add(which.astype(count.dtype)).reshape(count.shape)


def penalise(penalties: Penalties, seen: Array, said: Array, logits: Array) -> Array:
  """logits f32[B, N, V] after the penalties; seen bool[B, N, V], said f32[B, N, V]."""
  repetition, presence, frequency = (x[:, None, None] for x in penalties)
  weaker = jnp.where(logits > 0, logits / repetition, logits * repetition)
  changed = jnp.where(seen | (said > 0), weaker, logits)
  changed = changed - jnp.where(said > 0, presence, 0.0) - frequency * said
  most = jnp.finfo(logits.dtype).max
  return jnp.where(jnp.isfinite(logits), jnp.clip(changed, -most, most), logits)


@functools.cache
def penalties(vocab_size: int) -> Processor:
  """Penalises repetition, presence and frequency, at every node by the text on its own path."""

  def init(params: Penalties, context: Context, limit: Array) -> Counts:
    B, S = context.tokens.shape
    nothing = jnp.zeros((B, vocab_size))
    in_prompt = jnp.arange(S)[None] < context.length[:, None]
    return Counts(_add(nothing, context.tokens, in_prompt) > 0, nothing)

  def logits(params: Penalties, state: Counts, draft: Draft, mask: Array, logits: Array) -> Array:
    B, N, V = logits.shape
    above = mask.at[:, :, 0].set(False)  # the root is committed, and counted
    said = jnp.broadcast_to(state.said[:, None], (B, N, V))
    tokens = jnp.broadcast_to(draft.tokens[:, None], (B, N, N))
    return penalise(params, state.prompted[:, None], _add(said, tokens, above), logits)

  def ends(params: Penalties, state: Counts, tokens: Array) -> Array:
    return jnp.zeros(tokens.shape, bool)

  def update(params: Penalties, state: Counts, tokens: Array, rows: Array) -> Counts:
    emitted = jnp.arange(tokens.shape[1])[None] < rows[:, None]
    return state._replace(said=_add(state.said, tokens, emitted))

  return Processor("penalties", init, logits, ends, update)
