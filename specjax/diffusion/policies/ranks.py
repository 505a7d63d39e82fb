"""Slots are ranked by a score, the best first; of equals the one on the left.

Letters: B batch, W window.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Params, Policy, Prediction


def rank(score: Array, among: Array) -> Array:
  """i32[B, W], from 0; slots that are not `among` bool[B, W] come last."""
  order = jnp.argsort(jnp.where(among, -score, jnp.inf), axis=1)
  return jnp.argsort(order, axis=1).astype(jnp.int32)


def best(
  name: str, score: Callable[[Prediction], Array], count: Callable[[Params, Prediction], Array],
  knobs: type,
) -> Policy:  # fmt: skip
  """The policy that commits the `count` i32[B] open slots of the highest score f32[B, W]."""

  def select(params: Params, memory, prediction: Prediction):
    value = score(prediction)
    first = rank(value, prediction.open) < count(params, prediction)[:, None]
    return first & prediction.open, value, memory

  return Policy(name, lambda B, W, V: (), select, knobs)
