"""All slots are committed of which enough is known, by the token's probability or by entropy.

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


class EntropyThreshold(NamedTuple):
  """Knobs of `entropy_threshold`.

  Attributes:
    most: f32[B], the entropy in nats that a slot may have; published 0.45 to 0.5.
  """

  most: Knob = 0.5


@functools.cache
def entropy_threshold() -> Policy:
  """LOSSY: commits where the entropy is small enough.

  dParallel (Chen et al. 2025, arXiv 2509.26488), made for models distilled by `train.distill`.
  """

  def select(params: EntropyThreshold, memory, prediction: Prediction):
    sure = prediction.entropy <= params.most[:, None]
    return prediction.open & sure, -prediction.entropy, memory

  return Policy("entropy_threshold", lambda B, W, V: (), select, EntropyThreshold)
