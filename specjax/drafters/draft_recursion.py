"""A draft layer that goes on from its own states where the target's are not known, as EAGLE does.

Letters: B batch, T row length, M cut points, D depth, E width, W nodes of one level.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import KV, Examples
from specjax.drafters.draft_context import TextLayers, rows_at, token_at
from specjax.trees.paths import Step
from specjax.trees.structure import at

Guess = Callable[..., tuple[Array, KV]]
"""(state [B, N, E], following i32[B, N], position i32[B, N], mask, cache, earlier) ->
(next state [B, N, E], KV): the layer over states and the tokens that follow them, see `Layers`."""


def _join(rows: KV | None, fresh: KV) -> KV:
  """One after the other."""
  if rows is None:
    return fresh
  return jax.tree.map(lambda a, b: jnp.concatenate([a, b], 2), rows, fresh)


def unroll(
  guess: Guess, output: Array, kv: KV, examples: Examples, mask: Array, depth: int
) -> tuple[Array, ...]:
  """D states [B, M, E] at every cut point, each from the one before; this is training-time test.

  Guesses see the true rows up to their cut point, then those of their own cut point: the rows of
  the text are run once, later depths at the cut points only.

  Args:
    guess: the layer.
    output: [B, T, E], its output over true states.
    kv: of these rows.
    examples: where to draft.
    mask: bool[B, T, T], what the true rows see.
    depth: D.
  """
  states = [rows_at(output, examples.at)]
  B, M = examples.at.shape
  seen, own = rows_at(mask, examples.at), jnp.eye(M, dtype=bool)
  position = at(examples.position, examples.at)
  for step in range(1, depth):
    seen = jnp.concatenate([seen, jnp.broadcast_to(own, (B, M, M))], 2)
    token = token_at(examples, step + 1)
    state, fresh = guess(states[-1], token, position + step, seen, None, kv)
    states.append(state)
    kv = _join(kv, fresh)
  return tuple(states)


def step_from(guess: Guess, memory: TextLayers, read: Callable[[Array], Array]) -> Step:
  """The same while drafting, for `trees.grow.grow` with carry = memory.last and memory = None.

  Nodes see the cached rows and those of the expanded nodes above them.

  Args:
    read: states [B, W, E] -> logits.
  """

  def step(level, tokens, state, rows, mask):
    if level:  # the root's row is the newest of the cache, so its column falls away
      position = memory.cache.length[:, None] + level - 1
      position = jnp.broadcast_to(position, tokens.shape)
      state, fresh = guess(state, tokens, position, mask[:, :, 1:], memory.cache, rows)
      rows = _join(rows, fresh)
    return read(state), state, rows

  return step
