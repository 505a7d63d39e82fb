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
  """The bytes of a file, the first `most` of them where that is not -1.

  Raises:
    ValueError: it is absent, a directory or not readable.
  """
  if not isinstance(path, str | os.PathLike):  # open takes a number for an open file
    checks.refuse("path", path, "the path of a file")
  try:
    with open(path, "rb") as file:
      return file.read(most)
  except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
    reason = getattr(error, "strerror", None) or error
    raise ValueError(f"{str(path)!r} cannot be read: {reason}.") from None


def parse(text: str | bytes, name: str) -> Any:
  """The value of a JSON text.

  Args:
    name: says in errors which text it is.

  Raises:
    ValueError: it is no JSON, no UTF-8, or nested too deeply.
  """
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError(f"{name} is not JSON that can be read: it is nested too deeply.") from None
  except ValueError as error:
    raise ValueError(f"{name} is not JSON: {error}.") from None


def read(path: str | pathlib.Path, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
  """The object of a JSON file, its values checked.

  Raises:
    ValueError: the file cannot be read, is no JSON object, or has a value that is not accepted.
  """
  raw = parse(contents(path), str(path))
  if not isinstance(raw, dict):
    raise ValueError(f"{path} is no JSON object.")
  return raw | fields(raw, schema or {}, str(path))


def fields(
  raw: Mapping[str, Any], schema: Mapping[str, Any], where: str, needed: Iterable[str] = ()
) -> dict[str, Any]:
  """The checked values of the keys that a schema names; absent ones, and null, are left out.

  Args:
    where: the file or object, for errors.
    needed: keys that must be there.

  Raises:
    ValueError: a needed key is absent, or a value is not accepted.
  """
  for key in needed:
    if raw.get(key) is None:
      raise ValueError(f"{where} lacks {key!r}.")
  present = [key for key in schema if raw.get(key) is not None]
  return {key: accept(schema[key])(f"{where}: {key}", raw[key]) for key in present}


def build(kind: type, raw: Any, where: str) -> Any:
  """A dataclass from a JSON object; its annotations are the schema.

  Raises:
    ValueError: no object, a key that is no field, or a value that its field does not accept.
  """
  if not isinstance(raw, dict):
    checks.refuse(where, raw, "a JSON object")
  schema = typing.get_type_hints(kind)
  names = [field.name for field in dataclasses.fields(kind)]
  for key in raw:
    if key not in names:
      raise ValueError(f"{where} has the key {key!r}: accepted are {', '.join(names)}.")
  return kind(**{key: accept(schema[key])(f"{where}: {key}", raw[key]) for key in raw})


def accept(kind: Any) -> Check:
  """The check of a schema's entry."""
  if kind in _OF_TYPE:
    return _OF_TYPE[kind]
  inner = typing.get_args(kind)
  if isinstance(kind, types.UnionType):
    (base,) = (each for each in inner if each is not type(None))
    return lambda name, value: None if value is None else accept(base)(name, value)
  return listed(inner[0]) if inner else kind


def listed(kind: Any) -> Check:
  """The check of a list whose values are all of one kind; it returns a tuple."""

  def check(name: str, value: Any) -> tuple[Any, ...]:
    held = checks.sequence(name, value, "a list")
    return tuple(accept(kind)(f"{name}[{i}]", x) for i, x in enumerate(held))

  return check
