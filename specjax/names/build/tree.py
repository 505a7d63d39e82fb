"""Token trees from names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specjax import trees
from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.trees import TREES, Static, Tree

FILE = "tree"  # the name of a tree that a file describes


def build_tree(given: Any) -> tuple[str, Tree]:
  """(/canonical name, tree) of a name, a part, a tree or a list of rank paths.

  Raises:
    ValueError: a name of no tree, or a tree that cannot be.
  """
  if isinstance(given, str):
    given = grammar.parse_one("tree", given)
  if not isinstance(given, Part):
    shape: Any = Static(given) if isinstance(given, Sequence) else given
    known = type(shape) in TREES.values()
    if not known:
      raise ValueError(f"tree={given!r:.60}: accepted are a name, a tree, or a list of rank paths.")
    return f"/{name_of(shape)}", shape
  if given.name != FILE:
    grammar.refuse_text("tree", given)
    shape = trees.build(given.name, given.numbers)
    return f"/{name_of(shape, given)}", shape
  name, _ = grammar.settle("tree", given, {})
  return f"/{name}", trees.load(grammar.text_of(given, "a file", "FILE.json"))


def name_of(shape: Tree, part: Part | None = None) -> str:
  """The canonical name of a tree, with rank paths only where a name gave them as `part`."""
  kind = next(name for name, tree in TREES.items() if type(shape) is tree)
  fields = dataclasses.fields(shape)  # type: ignore[arg-type]
  if fields[0].name == "choices":
    return kind if part is None else grammar.show([part])
  numbers = [getattr(shape, field.name) for field in fields]
  while numbers[-1] == fields[len(numbers) - 1].default:
    numbers.pop()
  return grammar.show([Part(kind, tuple(numbers))])


def chain(depth: int) -> tuple[tuple[int, ...], ...]:
  """The rank paths of a chain of `depth` tokens."""
  return tuple((0,) * d for d in range(1, depth + 1))
