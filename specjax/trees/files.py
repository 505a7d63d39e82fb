"""Trees in files and in words, so that a tree chosen once can be named everywhere.

A file is a JSON object with one of

    {"choices": [[0], [1], [0, 0]]}                       rank paths, see `trees.static`
    {"dynamic": {"nodes": 16, "depth": 5, "beam": 4}}     see `trees.grow.Dynamic`
    {"beam": {"nodes": 16, "depth": 4, "width": 6}}       see `trees.paths.Beam`
    {"graph": {"nodes": 16, "depth": 5, "beam": 4}}       see `trees.graph.Graph`
    {"without_replacement": [[0], [1], [0, 0]]}                      drawn, see `trees.drawn`; iid, mixed too
    {"stochastic": {"width": 4, "depth": 3}}              see `trees.frontier.StochasticBeam`
    {"dyspec": {"width": 4, "depth": 3, "children": 3}}   see `trees.frontier.Threshold`
    {"none": true}                                        no speculation, the tree ()

and, if its writer had something to say, "about". In words numbers follow the kind: dynamic-16-5-4,
beam-16-4-6, graph-16-5-4, stochastic-4-3, dyspec-4-3-3, and without_replacement-4-2-1 for 4, then 2, then 1
children.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from specjax.trees.drawn import Drawn
from specjax.trees.frontier import StochasticBeam, Threshold
from specjax.trees.graph import Graph
from specjax.trees.grow import Dynamic, Tree, as_tree, size_of
from specjax.trees.paths import Beam
from specjax.trees.static import from_choices, k_config

ACCEPTED = (
  "FILE.json, dynamic-NODES-DEPTH-BEAM, beam-NODES-DEPTH-WIDTH or graph-NODES-DEPTH-BEAM; drawn: "
  "stochastic-WIDTH-DEPTH, dyspec-WIDTH-DEPTH-CHILDREN, or without_replacement-4-2-1 (iid, mixed) for 4, 2 "
  "and 1 children"
)
_SHAPES: dict[str, Any] = {
  "dynamic": Dynamic, "beam": Beam, "graph": Graph, "stochastic": StochasticBeam,
  "dyspec": Threshold,
}  # fmt: skip
_DRAWN = ("iid", "without_replacement", "mixed")
_WORDS = re.compile(rf"({'|'.join((*_SHAPES, *_DRAWN))})((?:-\d+)+)")


def save(path: str | pathlib.Path, tree: Tree, about: Mapping[str, Any]) -> None:
  """Writes what `load` reads.

  Args:
    tree: () for no speculation.
    about: what it was chosen for, ready for JSON.
  """
  raw: dict[str, Any] = {"choices": tree} if tree else {"none": True}
  for kind, shape in _SHAPES.items():
    if isinstance(tree, shape):
      raw = {kind: tree._asdict()}
  if isinstance(tree, Drawn):
    raw = {tree.how: tree.choices}
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
  kinds = ("choices", *_SHAPES, *_DRAWN, "none")
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
  """The tree of FILE.json, or the one that words such as dynamic-16-5-4 say.

  Raises:
    ValueError: another form, or no possible tree.
  """
  if match := _WORDS.fullmatch(words):
    kind, numbers = match[1], [int(n) for n in match[2].split("-")[1:]]
    if kind in _DRAWN:
      return Drawn(as_tree(k_config(numbers)), kind)  # type: ignore[arg-type]
    needed = len(_SHAPES[kind]._fields) - len(_SHAPES[kind]._field_defaults)
    if len(numbers) == needed:
      return _tree(kind, dict(zip(_SHAPES[kind]._fields, numbers, strict=False)))
  elif words.endswith(".json"):
    return load(words)
  raise ValueError(f"tree={words!r}: accepted is {ACCEPTED}.")


def _tree(kind: str, value: Any) -> Tree:
  if kind == "none":
    if value is not True:
      raise ValueError(f"none={json.dumps(value)}: accepted is true.")
    return ()
  if kind in ("choices", *_DRAWN):
    if not isinstance(value, list) or not all(isinstance(p, list) and _whole(p) for p in value):
      raise ValueError(f"choices={json.dumps(value):.60}: accepted are lists of ranks.")
    from_choices(value)
    tree = as_tree(value)
    return Drawn(tree, kind) if kind in _DRAWN else tree  # type: ignore[arg-type]
  shape = _SHAPES[kind]
  needed = {*shape._fields} - {*shape._field_defaults}
  names = set(value) if isinstance(value, dict) else set()
  whole = needed <= names <= {*shape._fields} and _whole(value[k] for k in needed)
  if not whole or not all(type(value[k]) in (int, float) for k in names):
    raise ValueError(f"{kind}={json.dumps(value):.60}: accepted are the numbers "
                     f"{', '.join(shape._fields)}.")  # fmt: skip
  tree = shape(**value)
  size_of(tree, tree.depth)
  return tree


def _whole(values: Iterable[Any]) -> bool:
  return all(type(x) is int for x in values)
