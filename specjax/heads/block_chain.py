"""Heads that fill a block in one pass over the committed text, then go through its tokens in order.

Letters: B batch, W nodes of one level or drafting positions of a row, D depth, E' width of what a
head reads out.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.heads import prefix
from specjax.heads.base import Feature
from specjax.heads.masked_block import MaskedBlock
from specjax.heads.own_pass import token_at


class Follow(Protocol):
  """The states [B, W, E'] that are read at depth d = 1..D (static), and the carry.

  Args:
    state: [B, W, any], what the block says at depth d.
    carry: a pytree of arrays [B, W, ...]; None at depth 1.
    tokens: i32[B, W], those at depth d - 1, the root for d = 1.
  """

  def __call__(
    self,
    params: Params,
    target_params: Params,
    state: Array,
    carry: Any,
    tokens: Array,
    d: int,
  ) -> tuple[Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class BlockChain(MaskedBlock):
  """A `MaskedBlock` whose guesses also depend on the tokens before them; `dspark.py` is one.

  Attributes:
    follow: see `Follow`. A tree calls it once per level, training once per depth. The layers have
      run by then, so that a level costs what is in it alone.
    feature: what the loss term of that name compares; the whole state by default.
  """

  follow: Follow
  feature: Feature = dataclasses.field(default=lambda state, d: state, kw_only=True)

  def begin(self, params, target_params, state, context, depth):
    last, row = prefix.last(state)[:, None], state.cache.length[:, None] - 1
    whole = self.block(params, target_params, last, row, cache=state.cache)[:, 0]

    def step(level, tokens, carry, memory, mask):
      read, carry = self._at(params, target_params, memory, carry, tokens, level)
      return self.read(params, target_params, read, level + 1), carry, memory

    return step, None, whole

  def _at(self, params, target_params, whole, carry, tokens, level):
    """`follow` at nodes i32[B, W] of a level, from what the block says, `whole` [B, D, any]."""
    state = whole[:, level, None]
    state = jnp.broadcast_to(state, (*tokens.shape, state.shape[2]))
    return self.follow(params, target_params, state, carry, tokens, level + 1)

  def guesser(self, params, target_params, *rest):
    guesser = super().guesser(params, target_params, *rest)
    if self.log_odds is None:
      return guesser

    def chance(level, tokens, carry, memory):
      read, _ = self._at(params, target_params, memory, carry, tokens, level)
      return jax.nn.sigmoid(self.log_odds(params, read))

    return guesser._replace(chance=chance)

  def unroll(self, params, target_params, examples):
    whole, states, carry = self.states(params, target_params, examples), [], None
    for d in range(1, self.depth + 1):
      token = token_at(examples, d)
      state, carry = self.follow(params, target_params, whole[:, :, d - 1], carry, token, d)
      states.append(state)
    return tuple(states)
