"""A number of slots per round, by a score.

Letters: B batch, W window.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Policy, Prediction
from specjax.diffusion.policies.ranks import rank


def _quota(name: str, score: Callable[[Prediction], Array]) -> Policy:
  def select(params: Array, memory, prediction: Prediction):
    value = score(prediction)
    return (rank(value, prediction.open) < params[:, None]) & prediction.open, value, memory

  return Policy(name, lambda B, W, V: (), select)


@functools.cache
def random() -> Policy:
  """`params` i32[B] slots per round, anywhere in the block."""
  return _quota("random", lambda prediction: prediction.uniform)


@functools.cache
def confidence() -> Policy:
  """The `params` i32[B] slots of the most probable tokens (low-confidence remasking, LLaDA)."""
  return _quota("confidence", lambda prediction: prediction.confidence)


@functools.cache
def margin() -> Policy:
  """The `params` i32[B] slots where the likeliest token leads the most (Dream's topk_margin)."""
  return _quota("margin", lambda prediction: prediction.margin)


@functools.cache
def entropy() -> Policy:
  """The `params` i32[B] slots of the least entropy (Dream's default)."""
  return _quota("entropy", lambda prediction: -prediction.entropy)


@functools.cache
def left_to_right() -> Policy:
  """The next `params` i32[B] slots, a baseline of ParallelBench."""
  return _quota("left_to_right", lambda prediction: -prediction.position.astype(jnp.float32))
