"""Where the rows of blocks stand and what they see, for heads that guess a block at once.

Letters: B batch, M blocks of a text, A rows of a block, S rows of text.
"""

import jax.numpy as jnp
from jax import Array


def laid_out(
  position: Array, first: int, rows: int, sees: Array | None, causal: bool
) -> tuple[Array, Array]:
  """Positions i32[B, M * A] and mask of M blocks side by side, which do not see each other.

  Args:
    position: i32[B, M], from which each block counts.
    first, rows: its rows stand at `position` + first + 0..A - 1 (static).
    sees: bool[B, M, S], the rows of text that each block sees, or None.
    causal: whether a row sees no later row of its block (static).

  Returns:
    (the positions, bool[B, M * A, M * A], or bool[B, M * A, S + M * A] with the text first).
  """
  (B, M), A = position.shape, rows
  ahead = first + jnp.arange(A, dtype=jnp.int32)
  inside = jnp.tril(jnp.ones((A, A), bool)) if causal else jnp.ones((A, A), bool)
  own = jnp.eye(M, dtype=bool)[:, None, :, None] & inside[None, :, None]
  mask = jnp.broadcast_to(own.reshape(1, M * A, M * A), (B, M * A, M * A))
  if sees is not None:
    mask = jnp.concatenate([jnp.repeat(sees, A, 1), mask], 2)
  return (position[:, :, None] + ahead[None, None]).reshape(B, M * A), mask
