"""Checks of what users give: a good value is returned, and one sentence refuses any other.

The sentence names the argument, its value and what is accepted. This file imports nothing of the
package, so that every floor can use it.
"""

import numbers
import operator
import os
import pathlib
import reprlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn

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
  """Raises the ValueError that names an argument, its value and what is accepted."""
  raise ValueError(f"{name}={shown(value)}: accepted is {accepted}.")


def whole(name: str, value: Any, least: int = 0, most: int = INT32, note: str = "") -> int:
  """An int in least..most; numpy's and jax's are accepted, True and 4096.0 are not.

  `note` says what a value means, such as "0 is off".
  """
  try:
    number = None if isinstance(value, bool) else operator.index(value)
  except TypeError:
    number = None
  if number is None or not least <= number <= most:
    refuse(name, value, _said(f"a whole number from {least} to {most}", note))
  return number


def number(
  name: str, value: Any, least: float = -FLOAT32, most: float = FLOAT32, *,
  above: float | None = None, below: float | None = None, note: str = "",
) -> float:  # fmt: skip
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
    bounds += [f"{least:g} or more"] if least > -FLOAT32 else []
    bounds += [f"{most:g} or less"] if most < FLOAT32 else []
    bounds += [f"below {below:g}"] if below is not None else []
    refuse(name, value, _said(" ".join(["a finite number", " and ".join(bounds)]).strip(), note))
  if 0 < abs(value) < TINY:
    zero = "" if above is not None else "0, or "
    refuse(name, value, _said(f"{zero}a number of {TINY:g} or more in size", note))
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
    refuse(name, value, f"one of {', '.join(names)}" if len(names) > 1 else f"only {names[0]!r}")
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
    refuse(name, str(value), "a directory that can be written, or made")
  return path
