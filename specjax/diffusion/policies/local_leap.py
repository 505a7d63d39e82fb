"""The neighbours of a slot that is sure need less confidence.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from specjax.diffusion.base import Knob, Policy, Prediction


class Leap(NamedTuple):
  """Knobs of `local_leap`.

  Attributes:
    anchor: f32[B], the probability that makes an anchor; published 0.9.
    near: f32[B], what neighbours of an anchor must reach; published 0.75.
    radius: i32[B], how far a neighbour may be; published 4.
  """

  anchor: Knob = 0.9
  near: Knob = 0.75
  radius: Knob = 4


@functools.cache
def local_leap() -> Policy:
  """LOSSY: commits by a threshold that is lower near anchors. LocalLeap (arXiv 2510.07081)."""

  def select(params: Leap, memory, prediction: Prediction):
    anchor = prediction.open & (prediction.confidence >= params.anchor[:, None])
    slot = jnp.arange(anchor.shape[1], dtype=jnp.int32)
    apart = jnp.abs(slot[:, None] - slot[None])[None]
    beside = (anchor[:, None] & (apart <= params.radius[:, None, None])).any(-1)
    least = jnp.where(beside, params.near[:, None], params.anchor[:, None])
    return prediction.open & (prediction.confidence >= least), prediction.confidence, memory

  return Policy("local_leap", lambda B, W, V: (), select, Leap)
