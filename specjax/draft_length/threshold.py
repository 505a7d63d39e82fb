"""The threshold here follows how much of the drafts is accepted.

Draft&Verify (Zhang et al. 2024, arXiv 2309.08168, section 3.4), taken over by AdaEDL (Agrawal et
al. 2024, arXiv 2410.18351, algorithm 1).

Letters: B batch.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

_RATE_DECAY, _VALUE_DECAY = 0.5, 0.9  # of both papers


class Threshold(NamedTuple):
  """What the controller keeps.

  Attributes:
    value: f32[B], the threshold.
    rate: f32[B], moving average of accepted / drafted.
    target: f32[B], the rate that is aimed at.
    step: f32[B], how far the threshold is pushed, a tenth of which it moves; 0 leaves it alone.
    longest: i32[B], D, the length of a whole draft.
  """

  value: Array
  rate: Array
  target: Array
  step: Array
  longest: Array


def init(
  batch: int, value: float, rate: float, target: float, step: float, longest: int
) -> Threshold:
  """One controller for every row, all alike."""

  def rows(x: float) -> Array:
    return jnp.full(batch, x, jnp.float32)

  whole = jnp.full(batch, longest, jnp.int32)
  return Threshold(rows(value), rows(rate), rows(target), rows(step), whole)


def follow(state: Threshold, accepted: Array, drafted: Array, whole: Array) -> Threshold:
  """The threshold rises when too little is accepted, else it falls unless the round was `whole`.

  Args:
    state: before the round.
    accepted, drafted: i32[B]; a row that drafted nothing stays as it is.
    whole: bool[B], rounds that a more lenient threshold could not have made longer.
  """
  share = accepted.astype(jnp.float32) / jnp.maximum(drafted, 1).astype(jnp.float32)
  rate = _RATE_DECAY * state.rate + (1 - _RATE_DECAY) * share
  push = jnp.where(rate < state.target, state.step, jnp.where(whole, 0.0, -state.step))
  value = state.value + (1 - _VALUE_DECAY) * push
  some = drafted > 0
  return state._replace(
    value=jnp.where(some, value, state.value), rate=jnp.where(some, rate, state.rate)
  )
