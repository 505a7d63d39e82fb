"""Texts of a grammar: the host says which tokens it allows after every node of a draft.

The device asks once a round, for all rows and nodes. What it asks depends on the draft and not on
the logits, so that the answer need not wait for the target's pass. Masks per node with rollback are
those of engines such as XGrammar (Dong et al. 2024, arXiv 2411.15100) and llguidance.

Letters: B batch, S capacity of a text, N tree nodes, V vocabulary, W = ceil(V / 32).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Context, Draft, Processor


class Said(NamedTuple):
  """What was emitted since the prompt: tokens i32[B, S], of which length i32[B] count."""

  tokens: Array
  length: Array


def nothing_said(context: Context) -> Said:
  """Before the first round; S is the context's."""
  return Said(jnp.zeros_like(context.tokens), jnp.zeros_like(context.length))


def say(said: Said, tokens: Array, rows: Array) -> Said:
  """What was said with the first `rows` i32[B] of tokens i32[B, A] behind it."""
  B, A = tokens.shape
  step = jnp.arange(A, dtype=jnp.int32)[None]
  column = jnp.where(step < rows[:, None], said.length[:, None] + step, said.tokens.shape[1])
  row = jnp.arange(B)[:, None]
  return Said(said.tokens.at[row, column].set(tokens, mode="drop"), said.length + rows)


def unpacked(words: Array, size: int) -> Array:
  """bool[.., V] of u32[.., W]: bit i of word w is that of token 32 w + i. V is `size`."""
  place = jnp.arange(32, dtype=jnp.uint32).reshape(*[1] * words.ndim, 32)
  bits = words[..., None] >> place & jnp.uint32(1)
  return bits.reshape(*words.shape[:-1], -1)[..., :size] > 0


class Ruled(NamedTuple):
  """What each row says under which grammar u8[B, G]; a grammar of zeros allows everything.

  budget i32[B] is the number of tokens that it may say in all.
  """

  rules: Array
  said: Said
  budget: Array


@functools.cache
def grammar(masks: Callable[..., np.ndarray]) -> Processor:
  """Allows only texts of a JSON Schema or a Lark grammar, by a parser.

  Each node has its own state of the parser.

  A token is forbidden, too, if no end fits into what is left of the budget after it (`distances`).

  Its params are u8[G], the grammar, see `schemas`. A row keeps the one with which it began, so that
  rows of other grammars of the same G may join a batch, and another needs no new compilation. The
  host is not asked in rounds in which no row has any.

  Where a text is complete, it allows a stop token. It needs `specjax[grammar]`.

  Measured: 1.01 of a plain round by `grammar` (processors)

  Args:
    masks: `matchers.Matchers.masks`, run on the host.
  """

  def init(params: Array, context: Context, limit: Array) -> Ruled:
    rules = jnp.broadcast_to(params, (len(context.length), *params.shape))
    return Ruled(rules, nothing_said(context), limit - context.length)

  def logits(params: Array, state: Ruled, draft: Draft, mask: Array, logits: Array) -> Array:
    B, N, V = logits.shape
    shape = jax.ShapeDtypeStruct((B, N, -(-V // 32)), jnp.uint32)

    def asked() -> Array:
      words = jax.pure_callback(
        masks,
        shape,
        state.rules,
        *state.said,
        state.budget - state.said.length,
        draft.tokens,
        draft.parent,
        draft.valid,
      )
      return jnp.where(unpacked(words, V), logits, -jnp.inf)

    return jax.lax.cond(state.rules.any(), asked, lambda: logits)

  def ends(params: Array, state: Ruled, tokens: Array) -> Array:
    return jnp.zeros(tokens.shape, bool)  # a text ends with a stop token, of which there is one

  def update(params: Array, state: Ruled, tokens: Array, rows: Array) -> Ruled:
    return state._replace(said=say(state.said, tokens, rows))

  return Processor("grammar", init, logits, ends, update)
