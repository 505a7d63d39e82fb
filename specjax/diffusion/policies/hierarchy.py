"""Each gap is split where its token is surest.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from specjax.diffusion.base import Knob, Policy, Prediction


class Levels(NamedTuple):
  """Knobs of `hierarchy`.

  Attributes:
    high: f32[B], the probability that suffices anywhere; published 0.92.
    low: f32[B], what the surest slot of a gap must exceed; published 0.62.
  """

  high: Knob = 0.92
  low: Knob = 0.62


@functools.cache
def hierarchy() -> Policy:
  """LOSSY: commits the surest slot of each run of masked ones, and all above a threshold.

  dInfer (Ma et al. 2025, arXiv 2510.08666), hierarchical decoding.
  """

  def select(params: Levels, memory, prediction: Prediction):
    open_, c = prediction.open, prediction.confidence
    begins = open_ & ~jnp.pad(open_, ((0, 0), (1, 0)))[:, :-1]
    run = jnp.cumsum(begins.astype(jnp.int32), 1)
    same = (run[:, :, None] == run[:, None]) & open_[:, None]
    best = jnp.where(same, c[:, None], -1.0).max(-1)
    # Of equals the one on the left wins.
    slot = jnp.arange(c.shape[1], dtype=jnp.int32)
    elder = same & (c[:, None] == c[:, :, None]) & (slot[None] < slot[:, None])[None]
    top = open_ & (c == best) & ~elder.any(-1)
    return (top & (c > params.low[:, None])) | (open_ & (c > params.high[:, None])), c, memory

  return Policy("hierarchy", lambda B, W, V: (), select, Levels)
