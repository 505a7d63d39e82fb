"""A head by name: one that the package has, or one in a file of the user's own."""

import typing
from collections.abc import Callable
from typing import Any

from specjax import checks
from specjax.base import Target, showing
from specjax.heads import HEADS
from specjax.heads.base import Head

Named = tuple[Callable[..., Head], type]


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
  if not checks.is_own_file(name):
    raise ValueError(
      f"`head` must be one of {', '.join(HEADS)}, or FILE.py:FUNCTION of your own, got {name!r}."
    )
  build = checks.own_part("head", name)
  if (kind := _config(build)) is None:
    file, _, function = name.rpartition(":")
    raise ValueError(
      f"{file}: {function} must be {function}(target: Target, config: CONFIG) -> "
      "Head, CONFIG a dataclass."
    )
  return build, kind


def is_own(name: str) -> bool:
  """Whether FILE.py:NAME is a head: a function that is annotated with its config."""
  return _config(checks.own_part("drafter", name)) is not None


def _config(build: Any) -> type | None:
  """The class that a function takes as `config`."""
  try:
    kind = typing.get_type_hints(build).get("config") if callable(build) else None
  except TypeError:  # an object without annotations, such as a partial
    kind = None
  return kind if isinstance(kind, type) else None


def built(build: Callable[..., Head], target: Target, config: Any) -> Head:
  """A head on a target; ValueError where that shows less than `build` is annotated to take."""
  kind = typing.get_type_hints(build).get("target", Target)
  return build(showing(kind, target, f"the head {build.__name__}"), config)
