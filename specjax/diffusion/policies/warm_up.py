"""A few slots are committed one by one, then all the rest at once.

Letters: B batch.
"""

import functools
from typing import NamedTuple

from specjax.diffusion.base import Knob, Policy, Prediction
from specjax.diffusion.policies.ranks import rank


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

  def select(params: WarmUp, memory, prediction: Prediction):
    one = rank(prediction.confidence, prediction.open) < 1
    late = (prediction.step >= params.rounds)[:, None]
    return prediction.open & (one | late), prediction.confidence, memory

  return Policy("warm_up", lambda B, W, V: (), select, WarmUp)
