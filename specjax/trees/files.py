"""Trees by name and in files, so that a tree chosen once can be used everywhere.

A file is a JSON object that holds a name of `TREES` with the tree's fields and may say in "about"
what the tree was chosen for:

    {"dynamic": {"nodes": 16, "depth": 5, "beam": 4}, "about": {"batch": 1}}
    {"static": {"choices": [[0], [1], [0, 0]]}}

A name has the same fields, dynamic-16,depth=5,beam=4; rank paths are given by the number of
children at each depth, without_replacement-4-2-1.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from specjax import checks
from specjax.trees.base import Tree
from specjax.trees.beam import Beam
from specjax.trees.drawn import IID, Mixed, WithoutReplacement
from specjax.trees.dynamic import Dynamic
from specjax.trees.frontier import DySpec, StochasticBeam
from specjax.trees.graph import Graph
from specjax.trees.static import Choices, Static, k_config

# Each is a frozen dataclass and a `trees.base.Tree`. Its fields are what a name or a file says of
# it: whole numbers, numbers, or the rank paths `choices`.
TREES: dict[str, type] = {
  "static": Static, "dynamic": Dynamic, "beam": Beam, "graph": Graph, "iid": IID,
  "without_replacement": WithoutReplacement, "mixed": Mixed, "stochastic_beam": StochasticBeam,
  "dyspec": DySpec,
}  # fmt: skip


def has_paths(name: str) -> bool:
  """Whether a tree of `TREES` is given by rank paths."""
  return dataclasses.fields(TREES[name])[0].name == "choices"


def build(name: str, given: Mapping[str, float] | Sequence[float], where: str = "tree") -> Tree:
  """The tree of {"nodes": 16, "depth": 5, "beam": 4}, or of the children of a node at each depth.

  Args:
    name: a key of `TREES`.
    given: its fields; for rank paths the number of children at each depth.
    where: what a message calls it.

  Raises:
    ValueError: other fields, or no possible tree.
  """
  if has_paths(name) and not isinstance(given, Mapping):
    return TREES[name](k_config([checks.whole(f"{where}: a number", n, 1) for n in given]))
  return _tree(name, given, where)


def save(path: str | pathlib.Path, tree: Tree | Choices, about: Mapping[str, Any]) -> None:
  """Writes a tree, or rank paths, to a file that `load` reads; `about` is ready for JSON."""
  shape: Any = Static(tree) if isinstance(tree, Sequence) else tree
  name = next(name for name, kind in TREES.items() if type(shape) is kind)
  raw = {name: dataclasses.asdict(shape), "about": about}
  pathlib.Path(path).write_text(json.dumps(raw) + "\n")


def load(path: str | pathlib.Path) -> Tree:
  """A tree of any kind in a file, such as `specjax tune` writes.

  Medusa's trees were found so (Cai et al. 2024, arXiv 2401.10774, section 2.3.3).

  Measured: 4.77 tokens per pass (heads_gsm8k)

  Raises:
    ValueError: the file cannot be read or holds no possible tree.
  """
  raw = checks.read_json(path)
  found = [name for name in TREES if name in raw]
  if len(found) != 1:
    raise ValueError(f"{path} is no tree: it must be an object with one of {', '.join(TREES)}.")
  return _tree(found[0], raw[found[0]], f"{path}: {found[0]}")


def _tree(name: str, value: Any, where: str) -> Tree:
  fields = dataclasses.fields(TREES[name])
  required = [f.name for f in fields if f.default is dataclasses.MISSING]
  if not isinstance(value, dict) or not set(required) <= set(value):
    checks.refuse(where, value, f"an object with {', '.join(required)}")
  try:
    return checks.from_json(TREES[name], value, where)
  except ValueError as error:
    raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from None
