"""Guesses that stay from round to round, as the methods of the Jacobi family keep them.

Letters: B batch, M guesses.
"""

import jax.numpy as jnp
from jax import Array

from specjax.base import Context
from specjax.trees.structure import gather


def repeated(context: Context, count: int) -> Array:
  """i32[B, count], the first guesses: the last `count` tokens of the text come once more.

  A text that is shorter is repeated as often as it takes.
  """
  length = context.length[:, None]
  span = jnp.minimum(length, count)
  return gather(context.tokens, length - span + jnp.arange(count, dtype=jnp.int32)[None] % span)


def moved(guesses: Array, by: Array, count: int) -> Array:
  """[B, count, ...]: guesses [B, M, ...] without the first `by` i32[B], and then the last again."""
  place = by[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
  return gather(guesses, jnp.clip(place, 0, guesses.shape[1] - 1))
