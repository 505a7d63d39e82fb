"""Rank paths as they are read from a file, for callers that have no other tree."""

from specjax.trees.base import Tree
from specjax.trees.dynamic import Dynamic
from specjax.trees.static import Choices

__all__ = ["Dynamic", "Tree", "as_tree"]


def as_tree(choices: Choices) -> tuple[tuple[int, ...], ...]:
  """Rank paths in any form, as hashable ones."""
  return tuple(tuple(int(rank) for rank in path) for path in choices)
