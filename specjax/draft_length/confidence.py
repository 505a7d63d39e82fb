"""This policy stops at the first draft token that its own model doubts."""

import functools

from jax import Array

from specjax.base import Params
from specjax.draft_length import estimates, threshold
from specjax.draft_length.base import DraftLength, Observation
from specjax.draft_length.threshold import Threshold


def _stop(params: Params, state: Threshold, observation: Observation) -> tuple[Array, Threshold]:
  assert observation.token is not None
  return estimates.by_probability(observation.log_probs, observation.token) < state.value, state


def _update(state: Threshold, accepted: Array, drafted: Array) -> Threshold:
  return threshold.follow(state, accepted, drafted, drafted >= state.longest)


@functools.cache
def confidence(
  least: float = 0.8,
  longest: int = 8,
  target: float = 0.9,
  step: float = 0.01,
  keep: bool = True,
) -> DraftLength:
  """Stops when q(token) is below a threshold that follows the share of accepted tokens.

  Draft&Verify (Zhang et al. 2024, arXiv 2309.08168, section 3.4), with the published defaults. With
  step=0 the threshold is fixed: `assistant_confidence_threshold` of transformers, there 0.4, or
  with keep=False `p_min` of llama.cpp.

  Args:
    least: the first threshold.
    longest: D, draft tokens of a round that was not stopped; such a round never lowers it.
    target: share of draft tokens that should be accepted.
    step: how far a round pushes the threshold; it moves by a tenth of that.
    keep: False drops the token that is doubted, see `DraftLength.drops`.
  """

  def init(batch: int) -> Threshold:
    return threshold.init(batch, least, 0.0, target, step, longest)

  return DraftLength("confidence", True, not keep, init, _stop, _update)
