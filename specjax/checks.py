"""Checks of what users give: a good value is returned, and one sentence refuses any other.

The sentence names the argument, says what it must be, and shows what it got. This file imports
nothing of the package, so that every floor can use it.
"""

import dataclasses
import functools
import importlib.util
import json
import numbers
import operator
import os
import pathlib
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

INT32 = 2**31 - 1
SEED = 2**32 - 1  # jax.random.key drops the higher bits of a seed without a word
FLOAT32 = 3.4e38
TINY = 1.2e-38  # float32 takes what is nearer to 0 for 0
BATCH = 2**16

_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother = 200, 60  # a path is shown whole


def shown(value: Any) -> str:
  """A value in one short line."""
  return " ".join(_SHORT.repr(value).split())


def refuse(name: str, value: Any, accepted: str) -> NoReturn:
  """Raises the ValueError "`batch` must be between 1 and 65536, got 0."

  Args:
    name: the argument, after the file or object that holds it: "config.json: head_dim".
    accepted: what follows "must be".
  """
  *where, own = name.rsplit(": ", 1)
  own = own if " " in own else f"`{own}`"  # "dtype of tensor x" is no name
  raise ValueError(f"{': '.join([*where, own])} must be {accepted}, got {shown(value)}.")


def whole(name: str, value: Any, least: int = 0, most: int = INT32, note: str = "") -> int:
  """An int in least..most; numpy's and jax's are accepted, True and 4096.0 are not.

  `note` says what a value means, such as "0 is off".
  """
  try:
    number = None if isinstance(value, bool) else operator.index(value)
  except TypeError:
    number = None
  if number is None or not least <= number <= most:
    kind = "a whole number " if number is None else ""
    refuse(name, value, _said(f"{kind}between {least} and {most}", note))
  return number


def number(
  name: str,
  value: Any,
  least: float = -FLOAT32,
  most: float = FLOAT32,
  *,
  above: float | None = None,
  below: float | None = None,
  note: str = "",
) -> float:
  """A float in least..most that float32 holds; True, NaN, infinity and a rounded 0 are refused.

  `above` and `below` are bounds that the value may not equal, in place of `least` and `most`.
  """
  real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if (
    not real
    or not least <= value <= most
    or (above is not None and not value > above)
    or (below is not None and not value < below)
  ):
    bounds = [f"above {above:g}"] if above is not None else []
    bounds += [f"at least {least:g}"] if least > -FLOAT32 else []
    bounds += [f"at most {most:g}"] if most < FLOAT32 else []
    bounds += [f"below {below:g}"] if below is not None else []
    said = " and ".join(bounds)
    if least > -FLOAT32 and most < FLOAT32:
      said = f"between {least:g} and {most:g}"
    held = real and -FLOAT32 <= value <= FLOAT32
    refuse(name, value, _said(said if held else f"a finite number {said}".strip(), note))
  if 0 < abs(value) < TINY:
    zero = "" if above is not None else "0, or "
    refuse(name, value, _said(f"{zero}at least {TINY:g} in size", note))
  return float(value)


def _said(accepted: str, note: str) -> str:
  return f"{accepted} ({note})" if note else accepted


def boolean(name: str, value: Any) -> bool:
  """True or False, not 1 or 0."""
  if not isinstance(value, bool):
    refuse(name, value, "true or false")
  return value


def text(name: str, value: Any) -> str:
  """A str that UTF-8 can write: bytes and lone surrogates are refused."""
  if not isinstance(value, str):
    refuse(name, value, "text")
  try:
    value.encode()
  except UnicodeEncodeError:
    refuse(name, value, "text without lone surrogates")
  return value


def choice(name: str, value: Any, accepted: Iterable[str]) -> str:
  """One of these names."""
  names = list(accepted)
  if not isinstance(value, str) or value not in names:
    refuse(name, value, f"one of {', '.join(names)}" if len(names) > 1 else repr(names[0]))
  return value


def sequence(name: str, value: Any, accepted: str) -> Sequence[Any]:
  """A list, tuple or array of what `accepted` says, for which a str is often given by mistake."""
  try:
    single = isinstance(value, str | bytes | Mapping | Set) or len(value) < 0
  except TypeError:
    single = True
  if single:
    refuse(name, value, accepted)
  return value


def texts(name: str, value: Any) -> tuple[str, ...]:
  """Texts of one character or more, in a list or tuple."""
  held = tuple(text(name, x) for x in sequence(name, value, "a list of texts"))
  if "" in held:
    refuse(name, value, "a list of texts that are not empty")
  return held


def ids(name: str, value: Any, vocab_size: int) -> list[int]:
  """Token ids below V, of a list, tuple or array of one axis."""
  held = sequence(name, value, f"a list of token ids from 0 to {vocab_size - 1}")
  return [whole(f"{name}[{i}]", x, 0, vocab_size - 1) for i, x in enumerate(held)]


def directory(name: str, value: str | pathlib.Path) -> pathlib.Path:
  """The path of a directory that is there, or that can be made; it is not made here."""
  path = pathlib.Path(value)
  there = next(x for x in (path.absolute(), *path.absolute().parents) if os.path.exists(x))
  possible = str(value) and "\0" not in str(value) and os.path.isdir(there)
  if not possible or not os.access(there, os.W_OK):
    refuse(name, str(value), "a directory that can be written or made")
  return path


def arrays(whose: str, record: Any, kind: type, **sizes: int) -> None:
  """Raises ValueError if a part returned no `kind`, a NamedTuple, or other arrays than it declares.

  Args:
    whose: the part, for the sentence.
    sizes: what the letters of declared shapes stand for; other letters stand for any number.
  """
  if not isinstance(record, kind):
    raise ValueError(f"{whose} must return a {kind.__name__}, got {shown(record)}.")
  for name, hint in typing.get_type_hints(kind).items():
    value, declared = getattr(record, name), [hint, *typing.get_args(hint)]
    for expected in declared:
      if hasattr(expected, "dim_str") and value is not None:
        array(f"`{name}` of {whose}", value, expected, **sizes)


def array(name: str, value: Any, expected: Any, **sizes: int) -> None:
  """Raises ValueError if an array has not the type and shape of `expected`, of jaxtyping."""
  letters = expected.dim_str.split()
  shape, dtype = np.shape(value), jnp.result_type(value).name
  fits = len(shape) == len(letters) and dtype in expected.dtypes
  if not fits or any(sizes.get(x, n) != n for x, n in zip(letters, shape, strict=True)):
    known = ", ".join(f"{x} = {sizes[x]}" for x in letters if x in sizes)
    accepted = f"{expected.__name__.split('[')[0].lower()}[{', '.join(letters)}]"
    raise ValueError(
      f"{name} must be {accepted} with {known}, got {dtype}[{', '.join(map(str, shape))}]."
    )


# JSON that users give. A schema maps keys to a type (int, float, bool, str, tuple[int, ...], or one
# of these `| None`), or to a function (name, value) -> value such as those above.

Check = Callable[[str, Any], Any]
_OF_TYPE: dict[Any, Check] = {
  int: whole, float: number, bool: boolean, str: text,
}  # fmt: skip


def contents(path: str | pathlib.Path, most: int = -1) -> bytes:
  """The first `most` bytes of a file, -1 for all; ValueError where it cannot be read."""
  if not isinstance(path, str | os.PathLike):  # open takes a number for an open file
    refuse("path", path, "the path of a file")
  try:
    with open(path, "rb") as file:
      return file.read(most)
  except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
    reason = getattr(error, "strerror", None) or error
    raise ValueError(f"{str(path)!r} cannot be read: {reason}.") from None


def parse_json(text: str | bytes, name: str) -> Any:
  """The value of a JSON text, which errors call `name`; ValueError where it cannot be parsed."""
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError(f"{name} is not JSON that can be read: it is nested too deeply.") from None
  except ValueError as error:
    raise ValueError(f"{name} is not JSON: {error}.") from None


def read_json(path: str | pathlib.Path) -> dict[str, Any]:
  """The object of a JSON file; ValueError where the file cannot be read or holds none."""
  raw = parse_json(contents(path), str(path))
  if not isinstance(raw, dict):
    raise ValueError(f"{path} is no JSON object.")
  return raw


def fields_of(
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


def from_json(kind: type, raw: Any, where: str) -> Any:
  """A dataclass from a JSON object; its annotations are the schema.

  It raises ValueError for no object, a key that is no field, and a value that is not accepted.
  """
  if not isinstance(raw, dict):
    refuse(where, raw, "a JSON object")
  hints = typing.get_type_hints(kind)
  schema = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
  for key in raw:
    if key not in schema:
      raise ValueError(f"{where}: a key must be one of {', '.join(schema)}, got {key!r}.")
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
    held = sequence(name, value, "a list")
    return tuple(accept(inner[0])(f"{name}[{i}]", x) for i, x in enumerate(held))

  return listed if inner else kind


# Parts in a file of the user's own, by the name FILE.py:NAME.


def is_own_file(name: Any) -> bool:
  """Whether a name is FILE.py:NAME."""
  return isinstance(name, str) and pathlib.Path(name.rpartition(":")[0]).suffix == ".py"


def own_part(what: str, name: str) -> Any:
  """What FILE.py calls NAME, for the argument `what`; the file is run as Python, once.

  Raises:
    ValueError: the file is absent, cannot be run, or has no such name.
  """
  file, _, attribute = name.rpartition(":")
  if not pathlib.Path(file).is_file():
    raise ValueError(
      f"{what}={name!r}: there is no file {file} in {pathlib.Path.cwd()}; a part of your own "
      "needs the file that defines it."
    )
  module = _run_file(pathlib.Path(file).resolve())
  if not hasattr(module, attribute):
    raise ValueError(f"{file} has no function {attribute}.")
  return getattr(module, attribute)


@functools.cache
def _run_file(file: pathlib.Path) -> Any:
  spec = importlib.util.spec_from_file_location(str(file), file)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[str(file)] = module  # where annotations are looked up
  try:
    spec.loader.exec_module(module)
  except Exception as error:  # whatever the user's own file raised
    raise ValueError(f"{file} cannot be run: {type(error).__name__}: {error}.") from error
  return module
