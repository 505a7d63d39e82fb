"""Drafters that know nothing: what is lossless under them is lossless under anything.

Letters: B batch, N tree nodes.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter
from specjax.trees.static import Choices, StaticTree, from_choices
from specjax.trees.structure import at


def _drafter(name: str, tree: StaticTree, guess, valid: Sequence[bool]) -> Drafter:
  """`guess`: (context, N) -> i32[B, N], of which the root's entry is not used."""
  N = len(tree.parent)

  def init(params, target_params, context, features, capacity):
    return ()

  def propose(params, target_params, state, context: Context, settings, noise):
    shape = (context.length.shape[0], N)
    parent, depth, ok = (
      jnp.broadcast_to(jnp.asarray(x), shape) for x in (tree.parent, tree.depth, [True, *valid])
    )
    root = at(context.tokens, context.length[:, None] - 1)
    tokens = jnp.where(depth == 0, root, guess(context, N))
    return Draft(tokens, parent, depth, ok), state

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    return state

  return Drafter(name, "deterministic", N, int(tree.depth.max()), init, propose, update)


def fixed_draft(
  choices: Choices, tokens: Sequence[int], valid: Sequence[bool] | None = None
) -> Drafter:
  """The same tree with the same tokens in every round.

  Args:
    choices: rank paths, see `trees.static`.
    tokens: the token of each path; siblings may repeat one.
    valid: False where a path is padding; all True by default.

  Raises:
    ValueError: a malformed tree, or another number of tokens or flags than of paths.
  """
  valid = [True] * len(choices) if valid is None else list(valid)
  if not len(choices) == len(tokens) == len(valid):
    raise ValueError(f"choices has {len(choices)} paths, tokens {len(tokens)} entries and valid "
                     f"{len(valid)}: expected one each.")  # fmt: skip
  tree = from_choices(choices)
  order = sorted(range(len(choices)), key=lambda i: (len(choices[i]), tuple(choices[i])))
  fixed = jnp.asarray([[0, *(tokens[i] for i in order)]], jnp.int32)

  def guess(context: Context, N: int) -> Array:
    return jnp.broadcast_to(fixed, (context.length.shape[0], N))

  return _drafter("fixed_draft", tree, guess, [valid[i] for i in order])


def random_draft(choices: Choices, vocab_size: int) -> Drafter:
  """A tree of garbage: tokens scrambled from the text's last token, its length and the node.

  Args:
    choices: rank paths, see `trees.static`.
    vocab_size: V of the target.
  """
  tree = from_choices(choices)

  def guess(context: Context, N: int) -> Array:
    length = context.length[:, None]
    root = at(context.tokens, length - 1)
    node = jnp.arange(N, dtype=jnp.int32)[None]
    x = (root * 7919 + length * 104729 + node * 15485863).astype(jnp.uint32)
    for factor in (2654435761, 2246822519):
      x = x * jnp.uint32(factor)
      x = x ^ (x >> 15)
    return (x % vocab_size).astype(jnp.int32)

  return _drafter("random_draft", tree, guess, [True] * len(choices))
