"""Token trees from names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specjax import checks, trees
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
    if type(shape) not in TREES.values():
      raise ValueError(
        f"`tree` must be a name, a tree, or a list of rank paths, got {given!r:.60}."
      )
    return f"/{name_of(shape)}", shape
  grammar.look_up("tree", given, TREES, {FILE: trees.load})
  if given.name not in TREES:
    name, _ = grammar.bind("tree", given, {})
    return f"/{name}", trees.load(grammar.text_of(given, "a file", "FILE.json"))
  where = f"tree={grammar.show([given])!r}"
  if trees.has_paths(given.name):
    grammar.refuse_text("tree", given)
    if given.labelled or not given.numbers:
      checks.refuse("tree", grammar.show([given]), f"{given.name}-CHILDREN-CHILDREN-..")
    return f"/{grammar.show([given])}", trees.build(given.name, given.numbers, where)
  known = fields(given.name)
  _, numbers = grammar.bind("tree", given, known)
  if missing := [key for key, default in known.items() if default is None and key not in numbers]:
    first, *others = known
    form = f"{given.name}-{first.upper()}" + "".join(f",{key}=NUMBER" for key in others)
    raise ValueError(f"{where}: it needs {' and '.join(missing)}, as in {form}.")
  shape = trees.build(given.name, numbers, where)
  return f"/{name_of(shape)}", shape


def fields(name: str) -> dict[str, float | None]:
  """The parameters of a tree, with None where it has no default."""
  return {
    f.name: None if f.default is dataclasses.MISSING else f.default
    for f in dataclasses.fields(TREES[name])
  }


def name_of(shape: Tree) -> str:
  """The canonical name of a tree, without its rank paths."""
  kind = next(name for name, tree in TREES.items() if type(shape) is tree)
  if trees.has_paths(kind):
    return kind
  own = dataclasses.asdict(shape)  # type: ignore[call-overload]
  return grammar.show([grammar.labelled(kind, fields(kind), own)])


def chain(depth: int) -> tuple[tuple[int, ...], ...]:
  """The rank paths of a chain of `depth` tokens."""
  return tuple((0,) * d for d in range(1, depth + 1))
