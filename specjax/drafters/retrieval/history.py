"""History lookup copies what followed the last tokens in earlier requests.

It is prompt lookup over a ring of the newest tokens of requests that are done, their prompts
included. So it finds what the "dynamic" table of an n-gram cascade (lookup decoding of llama.cpp)
finds, without hashing and eviction. `trie` drafts trees from the same ring.

Letters: B batch, H tokens that are kept, D depth, S length of texts.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter, Params
from specjax.drafters.retrieval.prompt_lookup import expected
from specjax.drafters.stateless import chain_of, from_draft
from specjax.trees.structure import gather

SEPARATOR = -1  # between texts, and where nothing is kept yet


def empty(kept: int) -> Array:
  """i32[H], a history without a text."""
  return jnp.full(kept, SEPARATOR, jnp.int32)


def append(history: Array, tokens: Array, length: Array) -> Array:
  """The newest H tokens of the history and then of the texts tokens i32[B, S], length i32[B]."""

  def one(b: int, history: Array) -> Array:
    both = jnp.concatenate([history, empty(1), tokens[b]])
    return jax.lax.dynamic_slice(both, (length[b] + 1,), history.shape)

  return jax.lax.fori_loop(0, len(tokens), one, history)


@functools.cache
def history(
  nodes: int = 8, longest: int = 8, shortest: int = 2, per_match: int = 2, kept: int = 2**15
) -> Drafter:
  """Copies what followed the last tokens in earlier requests.

  It is what followed their longest, then latest, match.

  The weights are that history i32[H], at first `empty`; every call of a decoder appends its texts
  to it. It takes 4 H bytes for all rows. Without a match nothing is drafted.

  Measured: 1.32 tokens per pass (trees)

  Args:
    nodes: the root and D tokens drafted.
    longest: n-gram length that counts as a full match.
    shortest: matches shorter than this are not used.
    per_match: tokens drafted for each token that matched; 0 drafts D whatever matched.
    kept: H, tokens.
  """
  depth = nodes - 1
  if not 1 <= shortest <= longest or nodes < 2 or per_match < 0 or kept <= depth + longest:
    raise ValueError(
      "`nodes` must be at least 2, `shortest` between 1 and `longest`, `per_match` at least 0 and "
      f"`kept` at least nodes + longest, got nodes={nodes}, longest={longest}, "
      f"shortest={shortest}, per_match={per_match} and kept={kept}."
    )
  if kept * (longest + 1) >= 2**31:
    raise ValueError(f"`kept` must be less than 2**31 / (longest + 1) tokens, got {kept}.")

  def matches(ring: Array, context: Context) -> Array:
    """i32[B, H], how many of the last tokens end at each of the history's."""
    tokens, length = context.tokens, context.length
    run = jnp.ones((len(length), kept), bool)
    matched = jnp.zeros(run.shape, jnp.int32)
    for j in range(longest):
      index = length[:, None] - 1 - j
      recent = jnp.where(index >= 0, gather(tokens, jnp.maximum(index, 0)), SEPARATOR - 1)
      shifted = jnp.pad(ring, (j, 0), constant_values=SEPARATOR)[None, :kept]
      run = run & (shifted == recent)
      matched = matched + run.astype(jnp.int32)
    return matched

  def draft(params: Params, context: Context) -> Draft:
    matched = matches(params, context)
    place = jnp.arange(kept, dtype=jnp.int32)[None]
    best = jnp.argmax(matched * kept + place, 1).astype(jnp.int32)[:, None]
    sure = gather(matched, best)
    step = jnp.arange(depth, dtype=jnp.int32)[None]
    many = jnp.where(sure >= shortest, per_match * sure if per_match else depth, 0)
    copied = jnp.pad(params, (0, depth), constant_values=SEPARATOR)[best + 1 + step]
    return chain_of(context, jnp.where(step < many, copied, -1))

  def keep(params: Params, state: Any, context: Context) -> Params:
    return append(params, context.tokens, context.length)

  def expects(params: Params, context: Context, draft: Draft) -> Array:
    matched = matches(params, context)
    ring = jnp.broadcast_to(params, matched.shape)
    return expected(ring, jnp.full(len(ring), kept, jnp.int32), matched, draft)

  return from_draft("history", 1 + depth, depth, draft)._replace(keep=keep, expects=expects)
