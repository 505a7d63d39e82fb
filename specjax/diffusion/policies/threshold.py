"""All slots whose token is probable enough are committed.

Letters: B batch.
"""

import functools
from typing import NamedTuple

from specjax.diffusion.base import Knob, Policy, Prediction


class Threshold(NamedTuple):
  """Knobs of `threshold`.

  Attributes:
    least: f32[B], the probability that suffices; published 0.9.
  """

  least: Knob = 0.9


@functools.cache
def threshold() -> Policy:
  """LOSSY: commits where the token's probability reaches a threshold.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2).
  """

  def select(params: Threshold, memory, prediction: Prediction):
    sure = prediction.confidence >= params.least[:, None]
    return prediction.open & sure, prediction.confidence, memory

  return Policy("threshold", lambda B, W, V: (), select, Threshold)
