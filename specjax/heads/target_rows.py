"""Heads whose layers read the target's own keys and values of the committed text.

Letters: B batch, W nodes of one level or drafting positions of a row, T row length, D depth, E
the target's width, E' width of what a head reads out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.heads import draft_vocabulary, prefix
from specjax.heads.own_pass import OwnPass, token_at


class Step(Protocol):
  """Takes in the token at depth d - 1 (the root for d = 1): carry [B, W, E] and tokens i32[B, W] ->
  (the state [B, W, E'] that is read at depth d = 1..D (static), carry).

  `position` i32[B, W] is the root's at every depth, for there are no keys of guesses; `seen` is the
  target's cache, or what `TargetRows.rows` makes of a text.
  """

  def __call__(
    self,
    params: Params,
    target_params: Params,
    carry: Array,
    tokens: Array,
    position: Array,
    seen: Any,
    d: int,
  ) -> tuple[Array, Array]: ...


class Rows(Protocol):
  """What the layers see of a text in training: inputs [B, T, E] of `Head.hidden_layers`, position
  i32[B, T], mask bool[B, W, T] of the rows that each drafting position sees -> see
  `models.readers.TextRows`."""

  def __call__(
    self, target_params: Params, inputs: tuple[Array, ...], position: Array, mask: Array
  ) -> Any: ...


@dataclasses.dataclass(frozen=True)
class TargetRows(OwnPass):
  """A `Recurrent` head whose step also sees what the target has cached; `gemma4_assistant.py` is
  one. It keeps nothing of the text but the target's newest state.

  Attributes:
    step: see `Step`. A tree calls it once per level, training once per depth.
    rows: see `Rows`.
    fixed: makes the collections of `params` that are not trained.
  """

  step: Step
  rows: Rows
  fixed: Callable[[], Params] = dataclasses.field(default=dict, kw_only=True)

  def init(self, key, target_params, vocabulary=None):
    own = {"params": self.weights(key, target_params, vocabulary)}
    return own | self.fixed() | draft_vocabulary.collection(vocabulary)

  def begin(self, params, target_params, state, context, depth):
    root, cache = context.length[:, None] - 1, context.cache

    def step(level, tokens, carry, memory, mask):
      position = jnp.broadcast_to(root, tokens.shape)
      read, carry = self.step(params, target_params, carry, tokens, position, cache, level + 1)
      return self.read(params, target_params, read, level + 1), carry, memory

    return step, prefix.last(state)[:, None], ()

  def unroll(self, params, target_params, examples):
    carry, position, sees, _ = self.roots(params, target_params, examples)
    inputs = examples.features.hidden_layers
    seen, states = self.rows(target_params, inputs, examples.position, sees), []
    for d in range(1, self.depth + 1):
      token = token_at(examples, d)
      state, carry = self.step(params, target_params, carry, token, position + 1, seen, d)
      states.append(state)
    return tuple(states)
