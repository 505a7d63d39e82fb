"""Slots of the least entropy are committed while their dependence on each other is bounded.

Letters: B batch.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from specjax.diffusion.base import Knob, Policy, Prediction
from specjax.diffusion.policies.ranks import rank


class EntropyBound(NamedTuple):
  """Knobs of `entropy_bound`.

  Attributes:
    most: f32[B], nats that the slots before one may hold; published 0.1 to 0.15.
  """

  most: Knob = 0.1


@functools.cache
def entropy_bound() -> Policy:
  """LOSSY: commits slots by rising entropy while those before them hold few nats.

  EB-Sampler (Ben-Hamu et al. 2025, arXiv 2505.24857): the sum, less its largest term, bounds the
  mutual information of what is committed together.
  """

  def select(params: EntropyBound, memory, prediction: Prediction):
    H = jnp.sort(jnp.where(prediction.open, prediction.entropy, jnp.inf), axis=1)
    before = jnp.pad(jnp.cumsum(H, 1), ((0, 0), (1, 0)))[:, :-1]
    count = ((before <= params.most[:, None]) & jnp.isfinite(H)).sum(1, dtype=jnp.int32)
    first = rank(-prediction.entropy, prediction.open) < count[:, None]
    return first & prediction.open, -prediction.entropy, memory

  return Policy("entropy_bound", lambda B, W, V: (), select, EntropyBound)
