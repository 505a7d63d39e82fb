"""Parts in a file of the user's own, by the name FILE.py:NAME."""

import functools
import importlib.util
import pathlib
import sys
from typing import Any


def is_file(name: Any) -> bool:
  """Whether a name is FILE.py:NAME."""
  return isinstance(name, str) and pathlib.Path(name.rpartition(":")[0]).suffix == ".py"


def read(what: str, name: str) -> Any:
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
  module = _module(pathlib.Path(file).resolve())
  if not hasattr(module, attribute):
    raise ValueError(f"{file} has no function {attribute}.")
  return getattr(module, attribute)


@functools.cache
def _module(file: pathlib.Path) -> Any:
  spec = importlib.util.spec_from_file_location(str(file), file)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[str(file)] = module  # where annotations are looked up
  try:
    spec.loader.exec_module(module)
  except Exception as error:  # whatever the user's own file raised
    raise ValueError(f"{file} cannot be run: {type(error).__name__}: {error}.") from error
  return module
