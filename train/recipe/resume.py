"""What lets a run be killed at any moment and started again."""

import hashlib
import itertools
import json
import pathlib
from typing import Any

# Of texts and states the content counts, not where they lie.
_FREE = ("out", "data", "answers", "features", "save_every")


def claim(directory: pathlib.Path, settings: dict[str, Any], content: bytes) -> None:
  """Ties a directory to one run, so that starting it again cannot mix two.

  The settings are kept in run.json. A directory without that file is taken as it is.

  Args:
    directory: of the run.
    settings: the resolved configuration.
    content: what is trained on.

  Raises:
    ValueError: the directory holds a run with other settings or other data.
  """
  file = directory / "run.json"
  digest = hashlib.sha256(content).hexdigest()[:16]
  here = json.loads(json.dumps(settings | {"data_digest": digest}))
  if file.exists():
    there = json.loads(file.read_text())
    keys = sorted(k for k in there.keys() | here.keys() if there.get(k) != here.get(k))
    changed = [k for k in keys if k not in _FREE]
    if changed:
      values = ", ".join(f"{k}={there.get(k)!r} (now {here.get(k)!r})" for k in changed)
      raise ValueError(f"out={str(directory)!r} holds a run with {values}: continue it with the "
                       "same settings and data, or choose another directory.")  # fmt: skip
  unfinished = file.with_suffix(".tmp")
  unfinished.write_text(json.dumps(here, indent=2) + "\n")
  unfinished.replace(file)


def count_lines(path: pathlib.Path) -> int:
  """Finished lines of a file, 0 where there is none; a kill may leave half a line behind."""
  return path.read_bytes().count(b"\n") if path.exists() else 0


def keep_lines(path: pathlib.Path, count: int) -> None:
  """Cuts a file after `count` lines, makes it where there is none."""
  with path.open("a+b") as file:
    file.seek(0)
    size = sum(map(len, itertools.islice(file, count)))
    file.truncate(size)
