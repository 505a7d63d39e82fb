"""Trees by name and in files, so that a tree chosen once can be used everywhere.

A file is a JSON object that holds a name of `TREES` with the tree's fields and, if its writer had
something to say, "about":

    {"dynamic": {"nodes": 16, "depth": 5, "beam": 4}, "about": {"batch": 1}}
    {"static": {"choices": [[0], [1], [0, 0]]}}

In a name the fields are numbers in their order, dynamic-16-5-4; rank paths are given by the number
of children at each depth, without_replacement-4-2-1.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.trees.base import Tree
from specjax.trees.static import Choices, Static, k_config
from specjax.trees.table import TREES


def _form(name: str) -> str:
  """What `build` accepts of a tree: dyspec-WIDTH-DEPTH-CHILDREN[-LEAST]."""
  fields = dataclasses.fields(TREES[name])
  if fields[0].name == "choices":
    return f"{name}-CHILDREN-CHILDREN-.."
  words = (f"-{f.name.upper()}" if _required(f) else f"[-{f.name.upper()}]" for f in fields)
  return name + "".join(words)


def _required(field: dataclasses.Field) -> bool:
  return field.default is dataclasses.MISSING


ACCEPTED = f"FILE.json, {', '.join(map(_form, TREES))}"


def build(name: str, numbers: Sequence[float] = (), path: str | pathlib.Path | None = None) -> Tree:
  """The tree of `dynamic-16-5-4`, ("dynamic", (16, 5, 4)), or that of a file.

  Args:
    name: of `TREES`; it does not matter where a file is given.
    numbers: the fields in their order, those with defaults last; for rank paths the number of
      children at each depth.
    path: a file, see `load`.

  Raises:
    ValueError: another name, other numbers, or no possible tree.
  """
  if path is not None:
    return load(path)
  spelled = "-".join([name, *map(str, numbers)])
  if name not in TREES:
    raise ValueError(f"tree={spelled!r}: accepted is {ACCEPTED}.")
  fields = dataclasses.fields(TREES[name])
  if fields[0].name == "choices" and all(type(n) is int for n in numbers):
    return TREES[name](k_config([int(n) for n in numbers]))
  enough = sum(map(_required, fields)) <= len(numbers) <= len(fields)
  if not enough or not all(_fits(n, f.type) for n, f in zip(numbers, fields, strict=False)):
    raise ValueError(f"tree={spelled!r}: accepted is {_form(name)}.")
  return TREES[name](*numbers)


def parse(words: str) -> Tree:
  """The tree of FILE.json, or the one of a name such as dynamic-16-5-4.

  Raises:
    ValueError: another form, or no possible tree.
  """
  if words.endswith(".json"):
    return load(words)
  name, *numbers = words.split("-")
  try:
    values = [int(n) if n.isdigit() else float(n) for n in numbers]
  except ValueError:
    raise ValueError(f"tree={words!r}: accepted is {ACCEPTED}.") from None
  return build(name, values)


def recognises(words: str) -> bool:
  """Whether `parse` knows the form."""
  return words.endswith(".json") or words.split("-")[0] in TREES


def save(path: str | pathlib.Path, tree: Tree | Choices, about: Mapping[str, Any]) -> None:
  """Writes what `load` reads.

  Args:
    tree: a tree, or rank paths.
    about: what it was chosen for, ready for JSON.
  """
  shape: Any = Static(tree) if isinstance(tree, Sequence) else tree
  name = next(name for name, kind in TREES.items() if type(shape) is kind)
  raw = {name: dataclasses.asdict(shape), "about": about}
  pathlib.Path(path).write_text(json.dumps(raw) + "\n")


def load(path: str | pathlib.Path) -> Tree:
  """The tree of a file.

  Raises:
    ValueError: the file is absent or holds no possible tree.
  """
  try:
    raw = json.loads(pathlib.Path(path).read_text())
  except FileNotFoundError:
    raise ValueError(f"tree={str(path)!r}: there is no such file.") from None
  except (ValueError, RecursionError, OSError) as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error
  found = [name for name in TREES if isinstance(raw, dict) and name in raw]
  if len(found) != 1:
    raise ValueError(f"{path} is no tree: expected an object with one of {', '.join(TREES)}.")
  try:
    return _tree(found[0], raw[found[0]])
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from None


def _tree(name: str, value: Any) -> Tree:
  """The tree of a name and its fields."""
  fields = {f.name: f for f in dataclasses.fields(TREES[name])}
  given = value if isinstance(value, dict) else {}
  required = {name for name, field in fields.items() if _required(field)}
  if not required <= set(given) <= set(fields) or not all(
    _fits(x, fields[n].type) for n, x in given.items()
  ):
    raise ValueError(f"{name}={json.dumps(value):.60}: accepted are {', '.join(fields)}; "
                     "choices are lists of ranks, all others numbers.")  # fmt: skip
  return TREES[name](**given)


def _fits(value: Any, kind: Any) -> bool:
  """Whether a value of a file may be a field's: int, float or rank paths."""
  if kind is int:
    return type(value) is int
  if kind is float:
    return type(value) in (int, float)
  return isinstance(value, list) and all(
    isinstance(path, list) and all(type(rank) is int for rank in path) for path in value
  )
