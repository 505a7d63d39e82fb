"""AdaEDL stops before a token that the draft's entropy makes unlikely to be accepted."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length import estimates, threshold
from specjax.draft_length.base import DraftLength, Observation
from specjax.draft_length.threshold import Threshold


class State(NamedTuple):
  """limit: Threshold; weight: f32[B], of the entropy; shortest: i32[B], draft tokens at least."""

  limit: Threshold
  weight: Array
  shortest: Array


def _stop(params: Params, state: State, observation: Observation) -> tuple[Array, State]:
  unlikely = estimates.by_entropy(observation.log_probs, state.weight) < state.limit.value
  return unlikely & (observation.step >= state.shortest), state


def _update(state: State, accepted: Array, drafted: Array) -> State:
  whole = accepted == state.limit.longest
  return state._replace(limit=threshold.follow(state.limit, accepted, drafted, whole))


@functools.cache
def adaedl(
  least: float = 0.5,
  longest: int = 8,
  weight: float = 0.2,
  target: float = 0.9,
  step: float = 0.01,
  shortest: int = 1,
) -> DraftLength:
  """Stops when 1 - sqrt(weight H) is below a threshold; H is the draft's entropy, in nats.

  Agrawal et al. 2024 (arXiv 2410.18351, section 3 and algorithm 1). The moving average of the share
  of accepted tokens starts at its target.

  Args:
    least: the first threshold.
    longest: D; a round in which so many are accepted never lowers it.
    weight: of the entropy.
    target: share of draft tokens that should be accepted.
    step: how far a round pushes the threshold; it moves by a tenth of that.
    shortest: draft tokens at least.
  """

  def init(batch: int) -> State:
    limit = threshold.init(batch, least, target, target, step, longest)
    weights = jnp.full(batch, weight, jnp.float32)
    return State(limit, weights, jnp.full(batch, shortest, jnp.int32))

  return DraftLength("adaedl", False, False, init, _stop, _update)
