"""The files of a run that may be killed at any moment and started again."""

import contextlib
import itertools
import json
import pathlib
import shutil
import sys
from collections.abc import Collection, Iterator
from typing import Any

from specjax import checks, fingerprint


def write_text(file: pathlib.Path, text: str) -> None:
  """Writes a file that is whole or absent, whenever the process is killed."""
  unfinished = file.with_suffix(".tmp")
  unfinished.write_text(text)
  unfinished.replace(file)


def write_json(file: pathlib.Path, content: Any) -> None:
  """`write_text` in JSON."""
  write_text(file, json.dumps(content, indent=2) + "\n")


def claim(directory: pathlib.Path, options: fingerprint.Key, free: Collection[str] = ()) -> None:
  """Ties a directory to a run with these options, so that starting it again cannot mix two.

  The options are kept in run.json; a directory without that file is accepted. Those in `free` may
  change.

  Raises:
    ValueError: the directory holds a run with other options.
  """
  file = directory / "run.json"
  if file.exists():
    changed = fingerprint.differences(checks.read_json(file), options, free)
    if changed:
      raise ValueError(
        f"out={str(directory)!r} holds a run with {changed}: continue it with the "
        "same settings and data, or choose another directory."
      )
  write_json(file, options)


@contextlib.contextmanager
def unfinished(directory: pathlib.Path, options: fingerprint.Key) -> Iterator[pathlib.Path]:
  """A folder for what a run has so far, which is removed when the run has ended.

  What a killed run with the same options has left there stays. What one with others has left is
  removed, and stderr says so.
  """
  place = directory / "unfinished"
  place.mkdir(exist_ok=True)
  try:
    claim(place, options)
  except ValueError:
    print(f"{place} held a run with other settings, which is begun anew.", file=sys.stderr)
    shutil.rmtree(place)
    place.mkdir()
    claim(place, options)
  yield place
  shutil.rmtree(place)


def count_lines(path: pathlib.Path) -> int:
  """The number of whole lines of a file, 0 where it is absent; a kill may leave half a line."""
  return path.read_bytes().count(b"\n") if path.exists() else 0


def keep_lines(path: pathlib.Path, count: int) -> None:
  """Cuts a file after `count` lines, and makes it where it is absent."""
  with path.open("a+b") as file:
    file.seek(0)
    size = sum(map(len, itertools.islice(file, count)))
    file.truncate(size)


def kept(path: pathlib.Path) -> list[Any]:
  """What the whole lines of a JSONL file say; half a line is cut off, an absent file is made."""
  keep_lines(path, count_lines(path))
  return [json.loads(line) for line in path.read_text().splitlines()]
