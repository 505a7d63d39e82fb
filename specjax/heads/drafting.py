"""Makes a drafter of a head, and unrolls the head along a true text to train it."""

import functools

from jax import Array

from specjax.base import Drafter, Params
from specjax.heads.base import Examples, Head
from specjax.trees.base import Counts, Tree
from specjax.trees.static import Static


@functools.cache
def drafter(
  head: Head, tree: Tree | tuple[tuple[int, ...], ...], counts: Counts | None = None
) -> Drafter:
  """A head that fills `tree` in every round.

  Valid siblings of a tree that is not drawn are distinct and chosen without looking at noise, so
  "greedy" and "target_only" are exact.

  Args:
    tree: static; rank paths alone are a `Static` tree.
    counts: of a head with pseudo rows, how many each node has; see `PseudoRows.drafter`.

  Raises:
    ValueError: a tree that is deeper than the head guesses, impossible by itself, or drawn from
      frames; counts that do not fit the head or the tree.
  """
  shape = Static(tree) if isinstance(tree, tuple) else tree
  if shape.depth > head.depth:
    raise ValueError(f"tree is {shape.depth} deep: the head guesses {head.depth} tokens ahead.")
  return head.drafter(shape, counts)


def unroll(
  head: Head, params: Params, target_params: Params, examples: Examples
) -> tuple[Array, ...]:
  """What the head reads along a true text, see `Head.unroll`."""
  return head.unroll(params, target_params, examples)
