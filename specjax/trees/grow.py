"""Trees by functions, for callers that hold a plain list of rank paths or another tree."""

from collections.abc import Sequence
from typing import Any

from jax import Array

from specjax.base import Draft, Proposal
from specjax.trees.base import Sampling, Step
from specjax.trees.base import Tree as AnyTree
from specjax.trees.dynamic import Dynamic
from specjax.trees.static import Choices, Static

__all__ = ["Dynamic", "Sampling", "Tree", "as_tree", "fill", "grow", "proposal_of", "size_of"]

Tree = AnyTree | tuple[tuple[int, ...], ...]


def _tree(tree: Tree) -> AnyTree:
  return Static(tree) if isinstance(tree, tuple) else tree


def as_tree(choices: Choices) -> tuple[tuple[int, ...], ...]:
  """Rank paths in any form, lists as they are read from a file, as hashable ones."""
  return tuple(tuple(int(rank) for rank in path) for path in choices)


def proposal_of(tree: Tree) -> Proposal:
  """How the tokens of a tree come about."""
  return _tree(tree).proposal


def size_of(tree: Tree, deepest: int) -> tuple[int, int]:
  """(N, D) of a tree, of which the head guesses `deepest` tokens ahead.

  Raises:
    ValueError: the tree is malformed or deeper than that.
  """
  tree = _tree(tree)
  if tree.depth > deepest:
    raise ValueError(f"tree is {tree.depth} deep: the head guesses {deepest} tokens ahead.")
  return tree.nodes, tree.depth


def grow(
  tree: Tree,
  root: Array,
  step: Step,
  carry: Any,
  memory: Any = (),
  ids: Array | None = None,
  sampling: Sampling | None = None,
) -> Draft:
  """Fills the tree, see `trees.base.Tree.fill`."""
  return _tree(tree).fill(root, step, carry, memory, ids, sampling)


def fill(
  tree: Tree,
  root: Array,
  logits: Sequence[Array],
  ids: Array | None = None,
  sampling: Sampling | None = None,
) -> Draft:
  """`grow` for guesses that do not depend on each other: logits f32[B, V] of each depth."""

  def step(level: int, tokens: Array, carry: Any, memory: Any, mask: Array):
    return logits[level][:, None], carry, memory

  return grow(tree, root, step, (), (), ids, sampling)
