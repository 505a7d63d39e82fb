"""This policy drafts more after success and less after failure."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length.base import DraftLength, Observation


class State(NamedTuple):
  """length: i32[B], draft tokens of the next round; longest: i32[B], at most."""

  length: Array
  longest: Array


def _stop(params: Params, state: State, observation: Observation) -> tuple[Array, State]:
  return observation.step >= state.length, state


def _update(state: State, accepted: Array, drafted: Array) -> State:
  longer = jnp.minimum(state.length + 2, state.longest)
  length = jnp.where(accepted == drafted, longer, jnp.maximum(state.length - 1, 1))
  return state._replace(length=jnp.where(drafted > 0, length, state.length))


@functools.cache
def heuristic(length: int = 5, longest: int = 20) -> DraftLength:
  """Drafts two tokens more after all were accepted, else one fewer, but one at least.

  This is the "heuristic" schedule of assisted generation in Hugging Face transformers, where drafts
  may grow without bound.

  Args:
    length: draft tokens of the first round.
    longest: draft tokens at most, D.
  """
  if not 1 <= length <= longest:
    raise ValueError(f"length={length}: accepted are 1 to longest={longest} draft tokens.")

  def init(batch: int) -> State:
    return State(jnp.full(batch, length, jnp.int32), jnp.full(batch, longest, jnp.int32))

  return DraftLength("heuristic", False, False, init, _stop, _update)
