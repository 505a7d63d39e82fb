"""A few slots one by one, then all the rest at once."""

import functools

from jax import Array

from specjax.diffusion.base import Policy, Prediction
from specjax.diffusion.policies.ranks import rank


@functools.cache
def warm_up() -> Policy:
  """One slot per round for `params` i32[B] rounds of a block, then all that are left.

  MDGR's two stages (2026, arXiv 2601.19501), made for short tuples of codes.
  """

  def select(params: Array, memory, prediction: Prediction):
    one = rank(prediction.confidence, prediction.open) < 1
    late = (prediction.step >= params)[:, None]
    return prediction.open & (one | late), prediction.confidence, memory

  return Policy("warm_up", lambda B, W, V: (), select)
