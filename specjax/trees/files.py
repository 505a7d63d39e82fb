"""Trees in files and in words, so that a tree chosen once can be named everywhere.

A file is a JSON object with one of

    {"choices": [[0], [1], [0, 0]]}                       rank paths, see `trees.static`
    {"dynamic": {"nodes": 16, "depth": 5, "beam": 4}}     see `trees.grow.Dynamic`
    {"beam": {"nodes": 16, "depth": 4, "width": 6}}       see `trees.paths.Beam`
    {"none": true}                                        no speculation, the tree ()

and, if its writer had something to say, "about". In words a searched tree is dynamic-16-5-4.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from specjax.trees.grow import Dynamic, Tree, as_tree, size_of
from specjax.trees.paths import Beam
from specjax.trees.static import from_choices

ACCEPTED = "FILE.json or dynamic-NODES-DEPTH-BEAM"
_SEARCHED: dict[str, type[Dynamic] | type[Beam]] = {"dynamic": Dynamic, "beam": Beam}
_WORDS = re.compile(r"(dynamic|beam)-(\d+)-(\d+)-(\d+)")


def save(path: str | pathlib.Path, tree: Tree, about: Mapping[str, Any]) -> None:
  """Writes what `load` reads.

  Args:
    tree: () for no speculation.
    about: what it was chosen for, ready for JSON.
  """
  raw: dict[str, Any]
  if isinstance(tree, Dynamic | Beam):
    raw = {type(tree).__name__.lower(): tree._asdict()}
  else:
    raw = {"choices": tree} if tree else {"none": True}
  pathlib.Path(path).write_text(json.dumps(raw | {"about": about}) + "\n")


def load(path: str | pathlib.Path) -> Tree:
  """The tree of a file, () for no speculation.

  Raises:
    ValueError: the file is absent or holds no possible tree.
  """
  try:
    raw = json.loads(pathlib.Path(path).read_text())
  except FileNotFoundError:
    raise ValueError(f"tree={str(path)!r}: there is no such file.") from None
  except ValueError as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error
  kinds = ("choices", *_SEARCHED, "none")
  found = [kind for kind in kinds if isinstance(raw, dict) and kind in raw]
  if len(found) != 1:
    raise ValueError(f"{path} is no tree: expected an object with one of {', '.join(kinds)}.")
  try:
    return _tree(found[0], raw[found[0]])
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from None


def recognises(words: str) -> bool:
  """Whether `parse` knows the form."""
  return words.endswith(".json") or _WORDS.fullmatch(words) is not None


def parse(words: str) -> Tree:
  """The tree of FILE.json, or the one that dynamic-NODES-DEPTH-BEAM says.

  Raises:
    ValueError: another form, or no possible tree.
  """
  if match := _WORDS.fullmatch(words):
    kind, *numbers = match.groups()
    fields = dict(zip(_SEARCHED[kind]._fields, map(int, numbers), strict=True))
    return _tree(kind, fields)
  if words.endswith(".json"):
    return load(words)
  raise ValueError(f"tree={words!r}: accepted is {ACCEPTED}.")


def _tree(kind: str, value: Any) -> Tree:
  if kind == "none":
    if value is not True:
      raise ValueError(f"none={json.dumps(value)}: accepted is true.")
    return ()
  if kind == "choices":
    if not isinstance(value, list) or not all(isinstance(p, list) and _whole(p) for p in value):
      raise ValueError(f"choices={json.dumps(value):.60}: accepted are lists of ranks.")
    from_choices(value)
    return as_tree(value)
  shape = _SEARCHED[kind]
  if not isinstance(value, dict) or set(value) != {*shape._fields} or not _whole(value.values()):
    raise ValueError(f"{kind}={json.dumps(value):.60}: accepted are the numbers "
                     f"{', '.join(shape._fields)}.")  # fmt: skip
  tree = shape(**value)
  size_of(tree, tree.depth)
  return tree


def _whole(values: Iterable[Any]) -> bool:
  return all(type(x) is int for x in values)
