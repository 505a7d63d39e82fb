"""The best slots by a score are committed, in a number that the round's place alone decides.

Letters: B batch, W window.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Knob, Policy, Prediction
from specjax.diffusion.policies.ranks import best


class Quota(NamedTuple):
  """Knobs of all policies of this file but `warm_up`.

  Attributes:
    slots: i32[B], how many are committed per round.
  """

  slots: Knob = 1


def _quota(name: str, score: Callable[[Prediction], Array]) -> Policy:
  return best(name, score, lambda params, prediction: params.slots, Quota)


@functools.cache
def random() -> Policy:
  """LOSSY: commits slots anywhere in the block; one per round is exact for a random order."""
  return _quota("random", lambda prediction: prediction.uniform)


@functools.cache
def confidence() -> Policy:
  """LOSSY: commits the slots of the most probable tokens (low-confidence remasking, LLaDA).

  Nie et al. 2025 (arXiv 2502.09992).
  """
  return _quota("confidence", lambda prediction: prediction.confidence)


@functools.cache
def margin() -> Policy:
  """LOSSY: commits the slots where the likeliest token leads the most (Dream's topk_margin)."""
  return _quota("margin", lambda prediction: prediction.margin)


@functools.cache
def entropy() -> Policy:
  """LOSSY: commits the slots of the least entropy (Dream's default)."""
  return _quota("entropy", lambda prediction: -prediction.entropy)


@functools.cache
def left_to_right() -> Policy:
  """LOSSY: commits the next slots; one per round is exact for that order.

  A baseline of ParallelBench (Kang et al. 2025, arXiv 2510.04767).
  """
  return _quota("left_to_right", lambda prediction: -prediction.position.astype(jnp.float32))


class WarmUp(NamedTuple):
  """Knobs of `warm_up`.

  Attributes:
    rounds: i32[B], how many rounds of a block commit one slot.
  """

  rounds: Knob = 2


@functools.cache
def warm_up() -> Policy:
  """LOSSY: commits one slot per round for some rounds of a block, then all that are left.

  MDGR's two stages (2026, arXiv 2601.19501), made for short tuples of codes.
  """

  def count(params: WarmUp, prediction: Prediction) -> Array:
    return jnp.where(prediction.step >= params.rounds, prediction.open.shape[1], 1)

  return best("warm_up", lambda prediction: prediction.confidence, count, WarmUp)
