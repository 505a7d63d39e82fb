"""A run's options in one YAML file: read by `--config FILE`, and kept in options.yaml of the run.

The keys are the options as they are typed, without dashes in front: `steps: 400`. Options of the
command line come before those of the file. A part with options of its own has them beside its name:

    head: {name: eagle3, depth: 4}
"""

import dataclasses
import json
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tyro
import yaml

from specjax import checks, command_line
from specjax.data.resume import write_text
from specjax.names.spelling import nearest

FILE = "options.yaml"
_FLAG = "--config"
_HELP = "--config FILE.yaml has options, which those of the command line replace."


def command(
  main: Callable[[Any], None],
  kind: type,
  description: str,
  *,
  argv: Sequence[str] | None = None,
  default: Any = None,
  **others: Any,
) -> int:
  """`command_line.run` of a trainer, whose options may be in a file, too."""
  words = list(sys.argv[1:] if argv is None else argv)
  try:
    raw, words = in_file(words)
    if raw is not None:
      default = filled(kind, *raw, default)
  except command_line.USER_ERRORS as error:
    print(command_line.sentence(error), file=sys.stderr)
    return 2
  if default is not None:
    others["default"] = default
  return command_line.run(main, kind, f"{description.strip()}\n\n{_HELP}", argv=words, **others)


def in_file(words: Sequence[str]) -> tuple[tuple[dict[str, Any], str] | None, list[str]]:
  """((the options in the file that `--config` names, its name), the other words); None without it.

  Raises:
    ValueError: no file is named, or more than one, or it is no mapping in YAML.
  """
  files, left, rest = [], [], iter(words)
  for word in rest:
    if word == _FLAG:
      files.append(next(rest, ""))
    elif word.startswith(f"{_FLAG}="):
      files.append(word.removeprefix(f"{_FLAG}="))
    else:
      left.append(word)
  if not files:
    return None, left
  if len(files) > 1 or not files[0]:
    checks.refuse("config", " ".join(files), "one file of options in YAML")
  try:
    raw = yaml.safe_load(pathlib.Path(files[0]).read_text())
  except (yaml.YAMLError, UnicodeDecodeError) as error:
    said = " ".join(str(error).split())
    raise ValueError(f"config={files[0]!r} is not YAML: {said}.") from None
  if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
    checks.refuse(f"{files[0]}: config", raw, "a mapping of options")
  return ({key.replace("-", "_"): value for key, value in raw.items()}, files[0]), left


def parts(words: Sequence[str]) -> list[str]:
  """The names of parts with options of their own in the file that the words name."""
  raw, _ = in_file(words)
  values = [] if raw is None else raw[0].values()
  names = (value.get("name") if isinstance(value, dict) else value for value in values)
  return [name for name in names if isinstance(name, str)]


def _is_shared(kind: Any) -> bool:
  """Whether a type is a dataclass, as `Training` is, whose options are typed without its name."""
  return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _members(kind: Any) -> dict[str, type]:
  """The dataclasses of a union by their names, none where it is no such union."""
  found = {}
  for each in typing.get_args(kind):
    own = typing.get_args(each)
    inner, marks = (own[0], own[1:]) if hasattr(each, "__metadata__") else (each, ())
    if _is_shared(inner):
      names = [str(x.name) for x in marks if getattr(x, "name", None)]
      found[next(iter(names), inner.__name__)] = inner
  return found


def _fields(kind: type) -> Iterator[tuple[dataclasses.Field, Any]]:
  """The fields of a dataclass with their types."""
  hints = typing.get_type_hints(kind, include_extras=True)
  for field in dataclasses.fields(kind):
    yield field, hints[field.name]


def _names(kind: type) -> Iterator[str]:
  for field, hint in _fields(kind):
    if _is_shared(hint):
      yield from _names(hint)
    else:
      yield field.name


def filled(kind: type, raw: Mapping[str, Any], where: str, base: Any = None) -> Any:
  """The options of a file, as a config in which what is asked for and absent is tyro.MISSING.

  Args:
    kind: type of the config.
    where: the file, for messages.
    base: a config with other defaults.

  Raises:
    ValueError: an option that there is not, or a value of another type.
  """
  known = list(_names(kind))
  for key in raw:
    if key not in known:
      raise ValueError(
        f"{where}: `option` must be one that --help lists, got {key!r}{nearest(key, known)}."
      )
  return _made(kind, raw, where, base)


def _made(kind: type, raw: Mapping[str, Any], where: str, base: Any) -> Any:
  found = {}
  for field, hint in _fields(kind):
    given = getattr(base, field.name) if base is not None else _default(field)
    if _is_shared(hint):
      found[field.name] = _made(hint, raw, where, None if given is tyro.MISSING else given)
    elif field.name not in raw:
      found[field.name] = given
    elif members := _members(hint):
      found[field.name] = _part(members, f"{where}: {field.name}", raw[field.name])
    else:
      found[field.name] = _value(f"{where}: {field.name}", hint, raw[field.name])
  return kind(**found)


def _default(field: dataclasses.Field) -> Any:
  if field.default is not dataclasses.MISSING:
    return field.default
  made = field.default_factory
  return tyro.MISSING if made is dataclasses.MISSING else made()


def _part(members: Mapping[str, type], where: str, value: Any) -> Any:
  """A part and its options: {name: eagle3, depth: 4}, or the name alone."""
  raw = {"name": value} if isinstance(value, str) else value
  if not isinstance(raw, dict) or raw.get("name") not in members:
    said = raw.get("name") if isinstance(raw, dict) else raw
    checks.refuse(where, said, f"a name, or a mapping with the name, of {', '.join(members)}")
  kind = members[raw["name"]]
  own = {str(key).replace("-", "_"): x for key, x in raw.items() if key != "name"}
  return filled(kind, own, where)


def _value(name: str, kind: Any, value: Any) -> Any:
  """A value of a type; a number may be text, for YAML takes 1e-3 as text."""
  while hasattr(kind, "__metadata__"):
    kind = typing.get_args(kind)[0]
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    for each in inner:
      try:
        return _value(name, each, value)
      except ValueError:
        continue
  elif origin is typing.Literal:
    if value in inner and isinstance(value, str):
      return value
  elif origin is tuple:
    some = inner[1:] == (...,)
    if isinstance(value, list) and (some or len(value) == len(inner)):
      kinds = inner[:1] * len(value) if some else inner
      return tuple(
        _value(f"{name}[{i}]", each, x)
        for i, (each, x) in enumerate(zip(kinds, value, strict=True))
      )
  elif kind is types.NoneType:
    if value is None:
      return None
  elif kind is float and not isinstance(value, bool):
    try:
      return float(value)
    except (TypeError, ValueError):
      pass
  elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
    return value
  checks.refuse(name, value, _said(kind))


def _said(kind: Any) -> str:
  """What a type accepts, in words."""
  while hasattr(kind, "__metadata__"):
    kind = typing.get_args(kind)[0]
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(map(_said, inner))
  if origin is typing.Literal:
    return f"one of {', '.join(map(str, inner))}"
  if origin is tuple:
    each = inner[:1] if inner[1:] == (...,) else inner
    return f"a list of which each is {' or '.join(dict.fromkeys(map(_said, each)))}"
  words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
  return words.get(kind, "null")


def as_dict(config: Any) -> dict[str, Any]:
  """The options of a config as a file has them."""
  found: dict[str, Any] = {}
  for field, hint in _fields(type(config)):
    value = getattr(config, field.name)
    if _is_shared(hint):
      found |= as_dict(value)
    elif members := _members(hint):
      name = next(name for name, kind in members.items() if kind is type(value))
      found[field.name] = {"name": name, **as_dict(value)}
    else:
      found[field.name] = value
  return json.loads(json.dumps(found))  # tuples as lists


def keep(directory: pathlib.Path, config: Any) -> None:
  """Prints the options of a run and writes them to its directory."""
  text = yaml.safe_dump(as_dict(config), sort_keys=False)
  print(f"{FILE}:\n{text}")
  write_text(directory / FILE, text)
