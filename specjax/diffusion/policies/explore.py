"""Where confidence stalls, the slot that is least known is filled.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from specjax.diffusion.base import Knob, Policy, Prediction


class Exploration(NamedTuple):
  """Knobs of `explore`; none of them is published.

  Attributes:
    least: f32[B], the probability that suffices in the block.
    ahead: f32[B], the one that suffices past it.
    fewest: i32[B], commits in the block below which a round explores.
  """

  least: Knob = 0.9
  ahead: Knob = 0.97
  fewest: Knob = 2


@functools.cache
def explore() -> Policy:
  """LOSSY: a threshold, a stricter one past the block, and the slot of most entropy in lean rounds.

  Our approximation of explore-then-exploit ("From Bits to Rounds", 2025, arXiv 2511.21103), of
  which neither code nor settings are public: it commits past the block and where a commit tells
  the most, as the paper says that it does. The blocks need slots `ahead`.
  """

  def select(params: Exploration, memory, prediction: Prediction):
    sure = prediction.open & (prediction.confidence >= params.least[:, None])
    past = prediction.masked & ~prediction.open & (prediction.confidence >= params.ahead[:, None])
    lean = sure.sum(1, dtype=jnp.int32) < params.fewest
    most = jnp.argmax(jnp.where(prediction.open & ~sure, prediction.entropy, -jnp.inf), 1)
    probe = jnp.arange(sure.shape[1])[None] == most[:, None]
    commit = sure | past | (probe & lean[:, None] & prediction.open)
    return commit, prediction.confidence, memory

  return Policy("explore", lambda B, W, V: (), select, Exploration)
