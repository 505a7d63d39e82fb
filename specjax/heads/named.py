"""A head by name: one that the package has, or one in a file of the user's own."""

import functools
import importlib.util
import pathlib
import sys
import typing
from collections.abc import Callable
from typing import Any

from specjax.base import Target, showing
from specjax.heads import HEADS
from specjax.heads.base import Head

Named = tuple[Callable[..., Head], type]


def is_file(name: Any) -> bool:
  """Whether a name is FILE.py:FUNCTION."""
  return isinstance(name, str) and pathlib.Path(name.rpartition(":")[0]).suffix == ".py"


def named(name: str) -> Named:
  """(build, config class) of a head; build(target, config) -> Head.

  Args:
    name: a key of `heads.HEADS`, or FILE.py:FUNCTION. The function takes (target, config), and
      its annotation of `config` is the class: a frozen dataclass whose fields have defaults. The
      file is run as Python.

  Raises:
    ValueError: a name that is neither, or a file that lacks the function or cannot be run.
  """
  if isinstance(name, str) and name in HEADS:
    return HEADS[name]
  if not is_file(name):
    raise ValueError(
      f"head={name!r}: accepted is one of {', '.join(HEADS)}, or FILE.py:FUNCTION of your own."
    )
  file, _, function = name.rpartition(":")
  if not pathlib.Path(file).is_file():
    raise ValueError(
      f"head={name!r}: there is no file {file} in {pathlib.Path.cwd()}; a head of "
      "your own is trained and loaded with the file that defines it."
    )
  return _of_file(pathlib.Path(file).resolve(), function)


def built(build: Callable[..., Head], target: Target, config: Any) -> Head:
  """A head on a target; ValueError where that shows less than `build` is annotated to take."""
  kind = typing.get_type_hints(build).get("target", Target)
  return build(showing(kind, target, f"the head {build.__name__}"), config)


@functools.cache
def _of_file(file: pathlib.Path, function: str) -> Named:
  spec = importlib.util.spec_from_file_location(str(file), file)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[str(file)] = module  # where annotations are looked up
  try:
    spec.loader.exec_module(module)
  except Exception as error:  # whatever the user's own file raised
    raise ValueError(f"{file} cannot be run: {type(error).__name__}: {error}.") from error
  build = getattr(module, function, None)
  if build is None:
    raise ValueError(f"{file} has no function {function}.")
  kind = typing.get_type_hints(build).get("config")
  if not isinstance(kind, type):
    raise ValueError(
      f"{file}: {function} must be {function}(target: Target, config: CONFIG) -> "
      "Head, CONFIG a dataclass."
    )
  return build, kind
