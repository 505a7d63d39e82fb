"""Finite automata over tokens force a text into a form, or end it with given words.

Letters: B batch, N tree nodes, A = D + 1, V vocabulary, Q states of an automaton.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Context, Draft, Processor


class Automaton(NamedTuple):
  """The params of a processor of this file, shared by the batch; the first state is 0.

  Attributes:
    following: i32[Q, V], the state after a token; -1 forbids it.
    final: bool[Q], states with which a text ends.
  """

  following: Array
  final: Array


class Measured(NamedTuple):
  """An `Automaton` whose texts have to end within their budgets.

  Attributes:
    distance: i32[Q], the fewest tokens to the end of a text, its stop token included.
  """

  following: Array
  final: Array
  distance: Array


class Place(NamedTuple):
  """The state of `constraint`: where a text is, i32[B], and how many tokens may follow, i32[B]."""

  state: Array
  left: Array


def _walk(automaton: Automaton | Measured, state: Array, tokens: Array) -> Array:
  """i32[B, A]: the state after each token i32[B, A], from `state` i32[B] on; -1 stays -1."""
  states = []
  for i in range(tokens.shape[1]):
    after = automaton.following[state, tokens[:, i]]
    state = jnp.where(state < 0, -1, after)
    states.append(state)
  return jnp.stack(states, 1)


def _at_nodes(automaton: Automaton | Measured, state: Array, draft: Draft) -> Array:
  """i32[B, N]: the state at every node, -1 below a forbidden token."""

  def level_below(level: Array, states: Array) -> Array:
    above = jnp.take_along_axis(states, draft.parent, 1)
    after = jnp.where(above < 0, -1, automaton.following[above, draft.tokens])
    return jnp.where(draft.depth == level, after, states)

  root = jnp.broadcast_to(state[:, None], draft.tokens.shape)
  return lax.fori_loop(1, draft.depth.max() + 1, level_below, root)


def _init(params: Automaton | Measured, context: Context, limit: Array) -> Array:
  return jnp.zeros(context.length.shape, jnp.int32)


def _update(params: Automaton | Measured, state: Array, tokens: Array, rows: Array) -> Array:
  states = jnp.concatenate([state[:, None], _walk(params, state, tokens)], 1)
  return jnp.take_along_axis(states, rows[:, None], 1)[:, 0]


def _ends(params: Automaton | Measured, state: Array, tokens: Array) -> Array:
  states = _walk(params, state, tokens)
  return (states >= 0) & params.final[states]


@functools.cache
def constraint() -> Processor:
  """Allows only texts of a regular expression, by the automaton's state at each node.

  Of a `Measured` one a token is also forbidden if no end fits into what is left of the budget after
  it. A budget that is one too short for the stop token holds the shortest texts without it.

  Every state that can be reached needs an allowed token. See `text.of_regex`.

  Measured: 0.97 of a plain round (processors)
  """

  def init(params: Automaton | Measured, context: Context, limit: Array) -> Place:
    left = limit - context.length
    if isinstance(params, Measured):
      left = jnp.maximum(left, params.distance[0])
    return Place(_init(params, context, limit), left)

  def logits(
    params: Automaton | Measured, state: Place, draft: Draft, mask: Array, logits: Array
  ) -> Array:
    states = _at_nodes(params, state.state, draft)
    after = params.following[states]
    allowed = after >= 0
    if isinstance(params, Measured):
      left, distance = state.left[:, None] - draft.depth, params.distance

      def fitting() -> Array:
        fits = allowed & (distance[after] < left[..., None])
        # Nothing fits at nodes that cannot be reached alone.
        return jnp.where(fits.any(-1, keepdims=True), fits, allowed)

      near = draft.valid & (left <= distance.max())
      allowed = lax.cond(near.any(), fitting, lambda: allowed)
    # Nodes that cannot be reached keep their logits: a distribution without support would be NaN.
    return jnp.where((states >= 0)[..., None] & ~allowed, -jnp.inf, logits)

  def ends(params: Automaton | Measured, state: Place, tokens: Array) -> Array:
    return _ends(params, state.state, tokens)

  def update(params: Automaton | Measured, state: Place, tokens: Array, rows: Array) -> Place:
    return Place(_update(params, state.state, tokens, rows), state.left - rows)

  return Processor("constraint", init, logits, ends, update)


@functools.cache
def stop_text() -> Processor:
  """Ends a text at the token that completes one of the given words.

  See `text.of_stop_words`.

  Measured: 0.99 of a plain round (processors)
  """

  def logits(params: Automaton, state: Array, draft: Draft, mask: Array, logits: Array) -> Array:
    return logits

  return Processor("stop_text", _init, logits, _ends, _update)
