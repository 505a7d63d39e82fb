"""Drafters that know nothing: a verifier that is lossless with them is lossless with any drafter.

Letters: B batch, N tree nodes.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter, Params
from specjax.drafters.stateless import from_draft
from specjax.trees.static import Choices, StaticShape, from_choices


def _drafter(
  name: str, shape: StaticShape, guess: Callable[[Context, int], Array], valid: Sequence[bool]
) -> Drafter:
  """`guess`: (context, N) -> i32[B, N], whose entry for the root is not used."""
  N = len(shape.parent)

  def draft(params: Params, context: Context) -> Draft:
    B = context.length.shape[0]
    parent, depth, ok = (
      jnp.broadcast_to(jnp.asarray(x), (B, N)) for x in (shape.parent, shape.depth, [True, *valid])
    )
    return Draft(jnp.where(depth == 0, context.root, guess(context, N)), parent, depth, ok)

  return from_draft(name, N, int(shape.depth.max()), draft)


def fixed_draft(
  choices: Choices, tokens: Sequence[int], valid: Sequence[bool] | None = None
) -> Drafter:
  """Drafts the same tree with the same tokens in every round.

  Args:
    choices: rank paths, see `trees.static`.
    tokens: the token of each path; siblings may have equal ones.
    valid: False where a path is padding; all True by default.

  Raises:
    ValueError: a malformed tree, or lists of different lengths.
  """
  valid = [True] * len(choices) if valid is None else list(valid)
  if not len(choices) == len(tokens) == len(valid):
    raise ValueError(
      f"choices has {len(choices)} paths, tokens {len(tokens)} entries and valid "
      f"{len(valid)}: expected one each."
    )
  tree = from_choices(choices)
  order = sorted(range(len(choices)), key=lambda i: (len(choices[i]), tuple(choices[i])))
  fixed = jnp.asarray([[0, *(tokens[i] for i in order)]], jnp.int32)

  def guess(context: Context, N: int) -> Array:
    return jnp.broadcast_to(fixed, (context.length.shape[0], N))

  return _drafter("fixed_draft", tree, guess, [valid[i] for i in order])


def random_draft(choices: Choices, vocab_size: int) -> Drafter:
  """Drafts garbage: tokens below `vocab_size`, hashed from last token, length and node."""
  tree = from_choices(choices)

  def guess(context: Context, N: int) -> Array:
    length = context.length[:, None]
    node = jnp.arange(N, dtype=jnp.int32)[None]
    x = (context.root * 7919 + length * 104729 + node * 15485863).astype(jnp.uint32)
    for factor in (2654435761, 2246822519):
      x = x * jnp.uint32(factor)
      x = x ^ (x >> 15)
    return (x % vocab_size).astype(jnp.int32)

  return _drafter("random_draft", tree, guess, [True] * len(choices))
