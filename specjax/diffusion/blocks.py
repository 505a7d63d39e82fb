"""How long the next block is.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Blocks, Prediction


@functools.cache
def fixed(size: int, ahead: int = 0) -> Blocks:
  """Blocks of `size` slots, one after the other: semi-autoregressive decoding (LLaDA).

  Nie et al. 2025 (arXiv 2502.09992). A canvas that fits in one block is decoded in any order.

  Args:
    size: of a block.
    ahead: slots past the block that policies see too.
  """
  return Blocks(
    "fixed",
    size + ahead,
    lambda params, prediction: jnp.full(prediction.step.shape, size, jnp.int32),
  )


class Delimiters(NamedTuple):
  """Params of `adaptive`.

  Attributes:
    tokens: i32[M], delimiters, such as the line break.
    least: f32[B], tau_D, what the delimiter must be probable; published 0.3 (LLaDA), 0.5 (Dream).
    size: i32[B], the block where no delimiter is.
    reach: i32[B], the slots in which one is looked for; published a quarter of the answer.
  """

  tokens: Array
  least: Array
  size: Array
  reach: Array


@functools.cache
def adaptive(window: int) -> Blocks:
  """A block ends with the delimiter that is most probable, as a sentence would.

  AdaBlock-dLLM (Lu et al. 2025, arXiv 2509.26432).

  Args:
    window: W, the longest block.
  """

  def size(params: Delimiters, prediction: Prediction) -> Array:
    offset = jnp.arange(window, dtype=jnp.int32)[None]
    ends = (prediction.token[..., None] == params.tokens[None, None]).any(-1)
    ends = ends & prediction.open & (offset < params.reach[:, None])
    confidence = jnp.where(ends, prediction.confidence, -1.0)
    best = jnp.argmax(confidence, 1).astype(jnp.int32)
    found = confidence.max(1) >= params.least
    return jnp.minimum(jnp.where(found, best + 1, params.size), window)

  return Blocks("adaptive", window, size)
