"""Where the rows of blocks stand and what they see, for heads that guess a block at once.

Letters: B batch, M blocks of a text, A rows of a block, S rows of text.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Seen(NamedTuple):
  """The text behind blocks: rows bool[B, M, S] that each block sees, and their position i32[B, S]
  in their texts."""

  rows: Array
  position: Array


def laid_out(
  position: Array,
  first: int,
  rows: int,
  sees: Seen | None,
  causal: bool,
  window: int | None = None,
) -> tuple[Array, Array]:
  """Positions i32[B, M * A] and mask of M blocks side by side, which do not see each other.

  Args:
    position: i32[B, M], from which each block counts.
    first, rows: its rows stand at `position` + first + 0..A - 1 (static).
    sees: the text that the blocks see, or None.
    causal: whether a row sees no later row of its block (static).
    window: how many of the last positions a row sees of the text, None for all (static); the layers
      mask the rows of its block by themselves.

  Returns:
    (the positions, bool[B, M * A, M * A], or bool[B, M * A, S + M * A] with the text first).
  """
  (B, M), A = position.shape, rows
  ahead = first + jnp.arange(A, dtype=jnp.int32)
  inside = jnp.tril(jnp.ones((A, A), bool)) if causal else jnp.ones((A, A), bool)
  own = jnp.eye(M, dtype=bool)[:, None, :, None] & inside[None, :, None]
  mask = jnp.broadcast_to(own.reshape(1, M * A, M * A), (B, M * A, M * A))
  place = (position[:, :, None] + ahead[None, None]).reshape(B, M * A)
  if sees is not None:
    text = jnp.repeat(sees.rows, A, 1)
    if window is not None:
      text = text & (place[:, :, None] - sees.position[:, None] < window)
    mask = jnp.concatenate([text, mask], 2)
  return place, mask
