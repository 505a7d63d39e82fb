"""The surer the slots are, the more of them are committed at once.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Knob, Policy, Prediction
from specjax.diffusion.policies.ranks import descending, rank


def leading(ok: Array) -> Array:
  """i32[B]: how many of bool[B, W] are True before the first that is not."""
  return jnp.cumprod(ok.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)


class Factor(NamedTuple):
  """Knobs of `factor`.

  Attributes:
    most: f32[B], f of the rule; published 1.
  """

  most: Knob = 1.0


@functools.cache
def factor() -> Policy:
  """LOSSY: commits the n surest slots, n the largest with (n + 1) (1 - c_n) <= f.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2); c_n is the n-th confidence.
  """

  def select(params: Factor, memory, prediction: Prediction):
    c = descending(prediction.confidence, prediction.open, -1.0)
    n = jnp.arange(1, c.shape[1] + 1, dtype=jnp.float32)[None]
    count = leading((n + 1) * (1 - c) <= params.most[:, None])
    first = rank(prediction.confidence, prediction.open) < count[:, None]
    return first & prediction.open, prediction.confidence, memory

  return Policy("factor", lambda B, W, V: (), select, Factor)
