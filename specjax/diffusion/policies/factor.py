"""More slots at once, the surer each of them is.

Letters: B batch, W window.
"""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Policy, Prediction
from specjax.diffusion.policies.ranks import descending, rank


def leading(ok: Array) -> Array:
  """i32[B]: how many of bool[B, W] are True before the first that is not."""
  return jnp.cumprod(ok.astype(jnp.int32), 1).sum(1, dtype=jnp.int32)


@functools.cache
def factor() -> Policy:
  """Commits the n surest slots, n the largest with (n + 1) (1 - c_n) <= f, c_n the n-th confidence.

  Fast-dLLM (Wu et al. 2025, arXiv 2505.22618, section 3.2); f is `params` f32[B], published 1.
  """

  def select(params: Array, memory, prediction: Prediction):
    c = descending(prediction.confidence, prediction.open, -1.0)
    n = jnp.arange(1, c.shape[1] + 1, dtype=jnp.float32)[None]
    count = leading((n + 1) * (1 - c) <= params[:, None])
    first = rank(prediction.confidence, prediction.open) < count[:, None]
    return first & prediction.open, prediction.confidence, memory

  return Policy("factor", lambda B, W, V: (), select)
