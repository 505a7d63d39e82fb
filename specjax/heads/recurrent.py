"""Heads that take in one token after the other.

Letters: B batch, W nodes of one level or drafting positions of a row, D depth, E' width of what a
head reads out.
"""

import dataclasses
from typing import Any, Protocol

from jax import Array

from specjax.base import Params
from specjax.heads import prefix
from specjax.heads.own_pass import OwnPass, token_at


class Step(Protocol):
  """Takes in the token at depth d - 1 (the root for d = 1): carry and tokens i32[B, W] ->
  (the state [B, W, E'] that is read at depth d = 1..D (static), carry)."""

  def __call__(
    self, params: Params, target_params: Params, carry: Any, tokens: Array, d: int
  ) -> tuple[Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Recurrent(OwnPass):
  """A head whose guess depends on those before it through a carry; `redrafter.py` is one, and
  `notebooks/train_a_draft_head.ipynb` writes one in a cell.

  To write one is to write `weights`, `read` (often `draft_vocabulary.through(target)`), and

  Attributes:
    step: see `Step`. The carry is a pytree of arrays [B, W, ...]; for d = 1 it is what `memory`
      keeps, [B, W, any]. A tree calls it once per level, training once per depth.
  """

  step: Step

  def begin(self, params, target_params, state, context, depth):
    def step(level, tokens, carry, memory, mask):
      read, carry = self.step(params, target_params, carry, tokens, level + 1)
      return self.read(params, target_params, read, level + 1), carry, memory

    return step, prefix.last(state)[:, None], ()

  def unroll(self, params, target_params, examples):
    (carry, *_), states = self.roots(params, target_params, examples), []
    for d in range(1, self.depth + 1):
      state, carry = self.step(params, target_params, carry, token_at(examples, d), d)
      states.append(state)
    return tuple(states)
