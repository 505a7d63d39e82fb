"""Lengths that are known when a round begins: constant, or by how much was accepted."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length.base import DraftLength, Observation


class ScheduleState(NamedTuple):
  """length: i32[B], draft tokens of the next round; longest: i32[B], at most."""

  length: Array
  longest: Array


def _scheduled(name: str, length: int, longest: int, update) -> DraftLength:
  def init(batch: int) -> ScheduleState:
    return ScheduleState(jnp.full(batch, length, jnp.int32), jnp.full(batch, longest, jnp.int32))

  def stop(
    params: Params, state: ScheduleState, observation: Observation
  ) -> tuple[Array, ScheduleState]:
    return observation.step >= state.length, state

  return DraftLength(name, False, False, init, stop, update)


@functools.cache
def constant(length: int = 4) -> DraftLength:
  """Drafts a fixed number of tokens, as speculative decoding does.

  Leviathan et al. 2023 (arXiv 2211.17192); `eval.theory.best_length` is the best such number.

  Measured: 2.92 tokens per pass (draft_models)

  Args:
    length: draft tokens per round; 0 is plain decoding.
  """
  if length < 0:
    raise ValueError(f"`length` must be at least 0 draft tokens, got {length}.")
  return _scheduled("constant", length, length, lambda state, accepted, drafted: state)


@functools.cache
def heuristic(length: int = 5, longest: int = 20) -> DraftLength:
  """Drafts two tokens more after all were accepted, else one fewer, but one at least.

  This is the "heuristic" schedule of assisted generation in Hugging Face transformers, which has no
  upper bound.

  Measured: 2.91 tokens per pass (draft_models)

  Args:
    length: draft tokens of the first round.
    longest: draft tokens at most, D.
  """
  if not 1 <= length <= longest:
    raise ValueError(
      f"`length` must be between 1 and longest={longest} draft tokens, got {length}."
    )

  def update(state: ScheduleState, accepted: Array, drafted: Array) -> ScheduleState:
    longer = jnp.minimum(state.length + 2, state.longest)
    following = jnp.where(accepted == drafted, longer, jnp.maximum(state.length - 1, 1))
    return state._replace(length=jnp.where(drafted > 0, following, state.length))

  return _scheduled("heuristic", length, longest, update)
