"""This policy drafts as many tokens in every round."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.draft_length.base import DraftLength, Observation


class State(NamedTuple):
  """length: i32[B], draft tokens per round."""

  length: Array


def _stop(params: Params, state: State, observation: Observation) -> tuple[Array, State]:
  return observation.step >= state.length, state


def _update(state: State, accepted: Array, drafted: Array) -> State:
  return state


@functools.cache
def constant(length: int = 4) -> DraftLength:
  """Drafts a fixed number of tokens, as speculative decoding does.

  Leviathan et al. 2023 (arXiv 2211.17192); `eval.theory.best_length` is the best such number.

  Args:
    length: draft tokens per round; 0 is plain decoding.
  """
  if length < 0:
    raise ValueError(f"length={length}: accepted are 0 draft tokens or more.")

  def init(batch: int) -> State:
    return State(jnp.full(batch, length, jnp.int32))

  return DraftLength("constant", False, False, init, _stop, _update)
