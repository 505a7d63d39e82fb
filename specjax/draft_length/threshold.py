"""A draft stops where its model is less sure than a threshold, which follows the acceptance rate.

The controller is that of Draft&Verify (Zhang et al. 2024, arXiv 2309.08168, section 3.4), which
AdaEDL (Agrawal et al. 2024, arXiv 2410.18351, algorithm 1) uses too.

Letters: B batch.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length import estimates
from specjax.draft_length.base import DraftLength, Observation

_RATE_DECAY, _VALUE_DECAY = 0.5, 0.9  # of both papers


class Threshold(NamedTuple):
  """The state of the controller.

  Attributes:
    value: f32[B], the threshold.
    rate: f32[B], moving average of accepted / drafted.
    target: f32[B], the rate that is aimed at.
    step: f32[B]; the threshold moves by a tenth of it.
    longest: i32[B], D, the length of a whole draft.
  """

  value: Array
  rate: Array
  target: Array
  step: Array
  longest: Array


def _init(batch: int, *start: float, longest: int) -> Threshold:
  """Equal controllers for all rows; `start` are the fields before `longest`."""
  value, rate, target, step = (jnp.full(batch, x, jnp.float32) for x in start)
  return Threshold(value, rate, target, step, jnp.full(batch, longest, jnp.int32))


def _follow(state: Threshold, accepted: Array, drafted: Array, whole: Array) -> Threshold:
  """The threshold rises when too little is accepted, else it falls unless the round was `whole`.

  Args:
    accepted, drafted: i32[B]; a row that drafted nothing keeps its state.
    whole: bool[B], rounds that no lower threshold could have made longer.
  """
  share = accepted.astype(jnp.float32) / jnp.maximum(drafted, 1).astype(jnp.float32)
  rate = _RATE_DECAY * state.rate + (1 - _RATE_DECAY) * share
  push = jnp.where(rate < state.target, state.step, jnp.where(whole, 0.0, -state.step))
  value = state.value + (1 - _VALUE_DECAY) * push
  some = drafted > 0
  return state._replace(
    value=jnp.where(some, value, state.value), rate=jnp.where(some, rate, state.rate)
  )


@functools.cache
def confidence(
  least: float = 0.8, longest: int = 8, target: float = 0.9, step: float = 0.01, keep: bool = True
) -> DraftLength:
  """Stops when q(token) is below a threshold that follows the share of accepted tokens.

  Draft&Verify (Zhang et al. 2024, arXiv 2309.08168, section 3.4), with the published defaults. With
  step=0 the threshold is fixed: `assistant_confidence_threshold` of transformers (0.4 there) or,
  with keep=False, `p_min` of llama.cpp.

  Measured: 1.95 tokens per pass (draft_models)

  Args:
    least: the first threshold.
    longest: D, draft tokens of a round that was not stopped; such a round never lowers it.
    target: share of draft tokens that should be accepted.
    step: the threshold moves by a tenth of this in a round.
    keep: False drops the token at which it stops, see `DraftLength.drops`.
  """

  def init(batch: int) -> Threshold:
    return _init(batch, least, 0.0, target, step, longest=longest)

  def stop(params: Params, state: Threshold, observation: Observation) -> tuple[Array, Threshold]:
    assert observation.token is not None
    return estimates.by_probability(observation.log_probs, observation.token) < state.value, state

  def update(state: Threshold, accepted: Array, drafted: Array) -> Threshold:
    return _follow(state, accepted, drafted, drafted >= state.longest)

  return DraftLength("confidence", True, not keep, init, stop, update)


class AdaEDL(NamedTuple):
  """limit: Threshold; weight: f32[B], of the entropy; shortest: i32[B], draft tokens at least."""

  limit: Threshold
  weight: Array
  shortest: Array


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

  Measured: 2.06 tokens per pass (draft_models)

  Args:
    least: the first threshold.
    longest: D; a round in which so many are accepted never lowers the threshold.
    weight: of the entropy.
    target: share of draft tokens that should be accepted.
    step: the threshold moves by a tenth of this in a round.
    shortest: draft tokens at least.
  """

  def init(batch: int) -> AdaEDL:
    limit = _init(batch, least, target, target, step, longest=longest)
    weights = jnp.full(batch, weight, jnp.float32)
    return AdaEDL(limit, weights, jnp.full(batch, shortest, jnp.int32))

  def stop(params: Params, state: AdaEDL, observation: Observation) -> tuple[Array, AdaEDL]:
    unlikely = estimates.by_entropy(observation.log_probs, state.weight) < state.limit.value
    return unlikely & (observation.step >= state.shortest), state

  def update(state: AdaEDL, accepted: Array, drafted: Array) -> AdaEDL:
    whole = accepted == state.limit.longest
    return state._replace(limit=_follow(state.limit, accepted, drafted, whole))

  return DraftLength("adaedl", False, False, init, stop, update)
