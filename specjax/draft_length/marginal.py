"""This policy goes on drafting while the next token is worth its time.

With S the probability that all draft tokens so far are accepted and a that of the next, drafting
that token adds S a expected tokens and costs c + d seconds, c of the draft model and d of verifying
one node more. With theta the tokens per second in the long run, drafting iff S a >= theta (c + d)
gives the largest possible theta (renewal-reward theorem; derived, no paper). Seconds are in units
of a target pass over one node.

Letters: B batch, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length import estimates
from specjax.draft_length.base import DraftLength, Observation


class MarginalState(NamedTuple):
  """Arrays f32[B]: S, moving averages per round whose ratio is theta, and parameters."""

  survival: Array
  tokens: Array
  time: Array
  draft_cost: Array
  node_cost: Array
  decay: Array


def _update(state: MarginalState, accepted: Array, drafted: Array) -> MarginalState:
  time = 1 + drafted.astype(jnp.float32) * (state.draft_cost + state.node_cost)
  tokens = 1 + accepted.astype(jnp.float32)
  keep = state.decay
  return state._replace(
    survival=jnp.ones_like(state.survival),
    tokens=keep * state.tokens + (1 - keep) * tokens,
    time=keep * state.time + (1 - keep) * time,
  )


@functools.cache
def marginal(
  draft_cost: float = 0.1,
  node_cost: float = 0.0,
  decay: float = 0.95,
  estimate: Callable[[Array], Array] = estimates.by_entropy,
) -> DraftLength:
  """Stops when the next token is worth less than the time it takes.

  It is asked before the token is drawn, so the chance is estimated from the distribution, by
  default as 1 - sqrt(0.2 H). The tokens per second are the ratio of two moving averages, which
  starts as that of plain decoding.

  It is ours, after the renewal-reward theorem. `specjax tune --drafters` with it measures both
  costs.

  Measured: 2.05 tokens per pass (draft_models)

  Args:
    draft_cost: c, seconds per draft token over seconds of a target pass.
    node_cost: d, seconds that one node more adds to a target pass, in the same units.
    decay: of the averages from round to round.
    estimate: log_probs f32[B, V] -> f32[B], the chance that a token drawn from them is accepted,
      for drafters that do not say it themselves, as DSpark's confidence does.
  """
  if draft_cost < 0 or node_cost < 0 or draft_cost + node_cost <= 0:
    raise ValueError(
      f"`draft_cost` and `node_cost` must be at least 0 and not both 0, got {draft_cost} and "
      f"{node_cost}."
    )

  def init(batch: int) -> MarginalState:
    ones = jnp.ones(batch)
    rest = (jnp.full(batch, x, jnp.float32) for x in (draft_cost, node_cost, decay))
    return MarginalState(ones, ones, ones, *rest)

  def stop(
    params: Params, state: MarginalState, observation: Observation
  ) -> tuple[Array, MarginalState]:
    chance = observation.chance
    survival = state.survival * (estimate(observation.log_probs) if chance is None else chance)
    worth = state.tokens / state.time * (state.draft_cost + state.node_cost)
    return survival < worth, state._replace(survival=survival)

  return DraftLength("marginal", False, False, init, stop, _update)
