"""JSON that users give, checked against a schema: what each key of an object accepts.

A schema maps keys to a type (int, float, bool, str, tuple[int, ...], or one of these `| None`), or
to a function (name, value) -> value such as those of `checks`.
"""

import dataclasses
import json
import os
import pathlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specjax import checks

Check = Callable[[str, Any], Any]
_OF_TYPE: dict[Any, Check] = {
  int: checks.whole, float: checks.number, bool: checks.boolean, str: checks.text,
}  # fmt: skip


def contents(path: str | pathlib.Path, most: int = -1) -> bytes:
  """The first `most` bytes of a file, -1 for all; ValueError where it cannot be read."""
  if not isinstance(path, str | os.PathLike):  # open takes a number for an open file
    checks.refuse("path", path, "the path of a file")
  try:
    with open(path, "rb") as file:
      return file.read(most)
  except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
    reason = getattr(error, "strerror", None) or error
    raise ValueError(f"{str(path)!r} cannot be read: {reason}.") from None


def parse(text: str | bytes, name: str) -> Any:
  """The value of a JSON text, which errors call `name`; ValueError where it cannot be parsed."""
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError(f"{name} is not JSON that can be read: it is nested too deeply.") from None
  except ValueError as error:
    raise ValueError(f"{name} is not JSON: {error}.") from None


def read(path: str | pathlib.Path) -> dict[str, Any]:
  """The object of a JSON file; ValueError where the file cannot be read or holds none."""
  raw = parse(contents(path), str(path))
  if not isinstance(raw, dict):
    raise ValueError(f"{path} is no JSON object.")
  return raw


def fields(
  raw: Mapping[str, Any], schema: Mapping[str, Any], where: str, needed: Iterable[str] = ()
) -> dict[str, Any]:
  """The checked values of the keys that a schema names; absent ones, and null, are left out.

  It raises ValueError, which names the file or object `where`, for a needed key that is absent and
  a value that is not accepted.
  """
  for key in needed:
    if raw.get(key) is None:
      raise ValueError(f"{where} lacks {key!r}.")
  present = [key for key in schema if raw.get(key) is not None]
  return {key: accept(schema[key])(f"{where}: {key}", raw[key]) for key in present}


def build(kind: type, raw: Any, where: str) -> Any:
  """A dataclass from a JSON object; its annotations are the schema.

  It raises ValueError for no object, a key that is no field, and a value that is not accepted.
  """
  if not isinstance(raw, dict):
    checks.refuse(where, raw, "a JSON object")
  hints = typing.get_type_hints(kind)
  schema = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
  for key in raw:
    if key not in schema:
      raise ValueError(f"{where} has the key {key!r}: accepted are {', '.join(schema)}.")
  return kind(**{key: accept(schema[key])(f"{where}: {key}", raw[key]) for key in raw})


def accept(kind: Any) -> Check:
  """The check of a schema's entry."""
  if kind in _OF_TYPE:
    return _OF_TYPE[kind]
  inner = typing.get_args(kind)
  if isinstance(kind, types.UnionType):
    (base,) = (each for each in inner if each is not type(None))
    return lambda name, value: None if value is None else accept(base)(name, value)

  def listed(name: str, value: Any) -> tuple[Any, ...]:
    held = checks.sequence(name, value, "a list")
    return tuple(accept(inner[0])(f"{name}[{i}]", x) for i, x in enumerate(held))

  return listed if inner else kind
