"""Random-access records by name: a JSONL file on disk, a TFDS dataset or drawn questions."""

import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from specjax import checks
from specjax.data import lists
from specjax.data.chat import checked, silent


class TextSource(Protocol):
  """Records by number; a number past the end raises IndexError, so that loops stop."""

  def __len__(self) -> int: ...
  def __getitem__(self, index: int) -> dict[str, Any]: ...


class JsonlSource(TextSource):
  """The objects of a JSONL file, one per non-empty line, parsed when asked for.

  "-" is the standard input, which is read once.
  """

  def __init__(self, path: str | pathlib.Path):
    self._path = str(path)
    content = sys.stdin.buffer.read() if self._path == "-" else checks.contents(path)
    self._lines = [line for line in content.split(b"\n") if line.strip()]

  def __len__(self) -> int:
    return len(self._lines)

  def __getitem__(self, index: int) -> dict[str, Any]:
    record = checks.parse_json(self._lines[index], f"{self._path}: record {index + 1}")
    if not isinstance(record, dict):
      raise ValueError(f"{self._path}: record {index + 1} is not an object.")
    return record


class _TextRecords(TextSource):
  """A TFDS data source whose byte strings are decoded."""

  def __init__(self, source):
    self._source = source

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict[str, Any]:
    record = self._source[range(len(self))[index]]
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in record.items()}


def _open_tfds(spec: str) -> TextSource:
  data = f"data={checks.shown(spec)}"
  parts = re.fullmatch(r"tfds:(.+):([^:\[\]]+(?:\[[^]]*\])?)", spec)
  if parts is None:
    raise ValueError(f"{data}: expected tfds:NAME:SPLIT, for example tfds:gsm8k:train.")
  name, split = parts.groups()
  try:
    import tensorflow_datasets as tfds  # an extra, and slow to import
    import tensorflow_datasets.text  # else the catalogue ends at the first family not installed
  except ImportError as error:
    raise ValueError(f"{data}: pip install 'specjax[tfds]' first ({error}).") from error
  try:
    if pathlib.Path(name).is_dir():
      source = tfds.builder_from_directory(name).as_data_source(split=split)
    else:
      source = tfds.data_source(name, split=split)
  except Exception as error:  # whatever its downloader or builder raised
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    raise ValueError(f"{data}: TFDS could not provide it ({reason}).") from error
  return _TextRecords(source)


def open_source(spec: str) -> TextSource:
  """Opens a dataset for random access.

  `spec` is "path/to/file.jsonl", or "-" for the standard input; "tfds:NAME:SPLIT", a dataset of the
  TFDS catalogue, downloaded on first use; "tfds:DIRECTORY:SPLIT", one already built on disk; or
  "lists:SEED:COUNT", so many questions about lists, see `data.lists`. It raises ValueError where
  the spec is none of these, the file does not exist or is empty, or TFDS cannot build the name.
  """
  data = f"data={checks.shown(checks.text('data', spec))}"
  if spec.startswith("tfds:"):
    source = _open_tfds(spec)
  elif drawn := re.fullmatch(r"lists:(\d+):(\d+)", spec):
    source = lists.records(int(drawn[1]), int(drawn[2]))
  elif spec == "-" or os.path.isfile(spec):
    source = JsonlSource(spec)
  else:
    raise ValueError(
      f"{data}: there is no such file; `data` must be a .jsonl file, tfds:NAME:SPLIT or "
      "lists:SEED:COUNT."
    )
  if not len(source):
    raise ValueError(f"{data} holds no records.")
  return source


@contextlib.contextmanager
def numbered(index: int) -> Iterator[None]:
  """Puts the number of a record before what is wrong with it."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f"record {index + 1}: {error}") from None


_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT


def conversation(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
  """The turns of `messages`, or of ShareGPT's `conversations`; None where a record has neither.

  Raises:
    ValueError: no list of turns, an empty one, a turn without its texts, or what no template here
      is given: tools, and weights of turns other than 1.
  """
  for key in ("tools", "functions"):
    if record.get(key):
      checks.refuse(key, record[key], "left out, for no template here is given tools")
  for key, role, content in (("messages", "role", "content"), ("conversations", "from", "value")):
    if key not in record:
      continue
    turns = []
    for i, turn in enumerate(checks.sequence(key, record[key], "a list of turns")):
      if not isinstance(turn, dict):
        checks.refuse(f"{key}[{i}]", turn, f"an object with the texts {role} and {content}")
      if turn.get("weight", 1) != 1:
        checks.refuse(f"{key}[{i}]: weight", turn["weight"], "1, for every answer is learned alike")
      if key == "messages":  # of OpenAI, which the templates read
        checks.fields_of(
          turn, {}, f"{key}[{i}]", needed=(role, *([content] if silent(turn) else ()))
        )
        turns.append(turn)
        continue
      held = checks.fields_of(
        turn, {role: str, content: str}, f"{key}[{i}]", needed=(role, content)
      )
      turns.append(turn | {"role": _ROLES.get(held[role], held[role]), "content": held[content]})
    if not turns:
      checks.refuse(key, record[key], "a list of one turn at least")
    checked(turns, key)
    return turns
  return None


def text_of(record: dict[str, Any], field: str, index: int) -> str:
  """The text in a field of record `index`; ValueError where there is none."""
  if not isinstance(record.get(field), str):
    held = ", ".join(k for k, v in record.items() if isinstance(v, str)) or "none"
    raise ValueError(
      f"record {index + 1} has no text in field {field!r}; fields with text: {held}."
    )
  return checks.text(f"record {index + 1}: {field}", record[field])
