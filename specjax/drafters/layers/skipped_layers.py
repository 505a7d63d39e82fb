"""Sets of sublayers that are left out of a draft, and files of them.

A file is a JSON object with the layers whose attention, and those whose MLP, do not run, and may
say in "about" how they were found:

    {"layers": 30, "attention": [3, 7, 9], "mlp": [12], "about": {"model": "smollm2-135m"}}

Letters: L layers.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from specjax import checks

_SCHEMA = {"layers": int, "attention": tuple[int, ...], "mlp": tuple[int, ...]}


def every_second(layers: int) -> np.ndarray:
  """bool[L, 2], what runs where every second layer but the last is left out, as SWIFT begins."""
  run = np.ones((layers, 2), bool)
  run[1 : layers - 1 : 2] = False
  return run


def save(path: str | pathlib.Path, run: np.ndarray, about: Mapping[str, Any]) -> None:
  """Writes what runs, bool[L, 2], to a file that `load` reads; `about` is ready for JSON."""
  attention, mlp = (np.flatnonzero(~run[:, i]).tolist() for i in range(2))
  raw = {"layers": len(run), "attention": attention, "mlp": mlp, "about": about}
  pathlib.Path(path).write_text(json.dumps(raw) + "\n")


def load(path: str | pathlib.Path, layers: int) -> np.ndarray:
  """bool[L, 2], whether the attention and the MLP of each layer run, from a file.

  Raises:
    ValueError: the file cannot be read, or is for a model of another number of layers.
  """
  held = checks.fields_of(checks.read_json(path), _SCHEMA, str(path), _SCHEMA)
  if held["layers"] != layers:
    checks.refuse(f"{path}: layers", held["layers"], f"{layers}, those of the model")
  run = np.ones((layers, 2), bool)
  for column, name in enumerate(("attention", "mlp")):
    for i, layer in enumerate(held[name]):
      run[checks.whole(f"{path}: {name}[{i}]", layer, 0, layers - 1), column] = False
  return run
