"""A draft stops where its head no longer believes that it survives.

Letters: B batch.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length import estimates
from specjax.draft_length.base import DraftLength, Observation


class Survival(NamedTuple):
  """Arrays [B]: the chance that all draft tokens so far are accepted, and `survival`'s numbers."""

  survival: Array
  least: Array
  shortest: Array


@functools.cache
def survival(least: float = 0.2, shortest: int = 1) -> DraftLength:
  """Stops when the head's confidence in the whole draft falls below a threshold.

  DSpark (arXiv 2607.05147): the product of the confidences down the chain is the chance that the
  next token is reached and accepted. A server with much load takes a higher threshold, as a node
  costs it more; `marginal` derives it from the costs. For a drafter that says no confidence it is
  estimated from the entropy, as in AdaEDL.

  Args:
    least: of the product, for the next token to be drafted.
    shortest: draft tokens at least.
  """

  def init(batch: int) -> Survival:
    ones = jnp.ones(batch)
    return Survival(ones, least * ones, jnp.full(batch, shortest, jnp.int32))

  def stop(params: Params, state: Survival, observation: Observation) -> tuple[Array, Survival]:
    chance = observation.chance
    if chance is None:
      chance = estimates.by_entropy(observation.log_probs)
    reached = state.survival * chance
    ends = (reached < state.least) & (observation.step >= state.shortest)
    return ends, state._replace(survival=reached)

  def update(state: Survival, accepted: Array, drafted: Array) -> Survival:
    return state._replace(survival=jnp.ones_like(state.survival))

  return DraftLength("survival", False, False, init, stop, update)
