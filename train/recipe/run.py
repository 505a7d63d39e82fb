"""The directory of a run, which may be killed at any moment and started again."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from specjax import schema
from specjax.train.recipe.config import check

# Options that may differ when a run continues: where texts and states lie does not change them.
_FREE = ("out", "data", "answers", "features", "save_every", "devices")


def write_json(file: pathlib.Path, content: Any) -> None:
  """Writes a file that is whole or absent, whenever the process is killed."""
  unfinished = file.with_suffix(".tmp")
  unfinished.write_text(json.dumps(content, indent=2) + "\n")
  unfinished.replace(file)


def digest(parts: Iterable[Any]) -> str:
  """A short hash of texts and arrays in order."""
  sha = hashlib.sha256()
  for part in parts:
    sha.update(part.encode() if isinstance(part, str) else np.asarray(part).tobytes())
  return sha.hexdigest()[:16]


def begin(config: Any) -> pathlib.Path:
  """Checks the numbers among a trainer's options and makes the directory of its run.

  Raises:
    ValueError: a number is not accepted, or nothing can be written to the directory.
  """
  check(config)
  config.training.shardings()
  path = pathlib.Path(config.out)
  try:
    path.mkdir(parents=True, exist_ok=True)
    (path / ".writable").touch()
    (path / ".writable").unlink()
  except OSError as error:
    raise ValueError(f"out={config.out!r}: nothing can be written ({error.strerror}).") from None
  return path


def claim(directory: pathlib.Path, config: Any, content: Any, **replaced: Any) -> None:
  """Ties a directory to one run, so that starting it again cannot mix two.

  The options `config | replaced` are kept in run.json with a digest of what is trained on, a tuple
  of arrays or a value for JSON. A directory without run.json is accepted.

  Raises:
    ValueError: the directory holds a run with other options or other data.
  """
  file, here = directory / "run.json", dataclasses.asdict(config) | replaced
  for shared in ("training", "network"):
    here |= here.pop(shared, {})
  here["data_digest"] = digest(content if isinstance(content, tuple) else [json.dumps(content)])
  here = json.loads(json.dumps(here))
  if file.exists():
    there = schema.read(file)
    keys = sorted(k for k in there.keys() | here.keys() if there.get(k) != here.get(k))
    changed = [k for k in keys if k not in _FREE]
    if changed:
      values = ", ".join(f"{k}={there.get(k)!r} (now {here.get(k)!r})" for k in changed)
      raise ValueError(f"out={str(directory)!r} holds a run with {values}: continue it with the "
                       "same settings and data, or choose another directory.")  # fmt: skip
  write_json(file, here)


def report(directory: pathlib.Path, figures: dict[str, Any]) -> None:
  """Writes report.json and prints a line per figure."""
  write_json(directory / "report.json", figures)
  for name, value in figures.items():
    print(f"{name}: {json.dumps(value)}")


def count_lines(path: pathlib.Path) -> int:
  """The number of whole lines of a file, 0 where it is absent; a kill may leave half a line."""
  return path.read_bytes().count(b"\n") if path.exists() else 0


def keep_lines(path: pathlib.Path, count: int) -> None:
  """Cuts a file after `count` lines, and makes it where it is absent."""
  with path.open("a+b") as file:
    file.seek(0)
    size = sum(map(len, itertools.islice(file, count)))
    file.truncate(size)
