"""How every command starts: options from the command line, and one sentence for a user's error.

This file imports jax, and nothing that does, only once the options are read, so that `--help`
answers at once.
"""

import contextlib
import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import tyro

from specjax.names.spelling import nearest

USER_ERRORS = (ValueError, FloatingPointError, OSError)


def sentence(error: BaseException) -> str:
  """What an error says, in one line."""
  said = str(error)
  if isinstance(error, OSError) and error.filename is not None:
    said = f"{error.filename!r}: {error.strerror}."
  return f"error: {' '.join(said.split()) or type(error).__name__}"


def refuse(given: str, known: Iterable[str], what: str) -> NoReturn:
  """Ends the process after a sentence: `given` is not among the `known`, but may be misspelt."""
  print(f"error: {what}, got {given!r}{nearest(given, known)}.", file=sys.stderr)
  sys.exit(2)


def _flags(options: Any) -> Iterator[str]:
  """The options that a config has, as they are typed."""
  for field in dataclasses.fields(options):
    value = getattr(options, field.name)
    if dataclasses.is_dataclass(value):
      yield from _flags(value)
    else:
      yield f"--{field.name.replace('_', '-')}"


def _keep_programs() -> None:
  """Has jax keep what it took a second or more to compile, unless the user has said where.

  The folder is of this machine, for a program of one processor may not run on another. Beyond a
  gigabyte what was not used for longest goes.
  """
  import jax

  from specjax.fingerprint import cache_dir

  if jax.config.values["jax_compilation_cache_dir"] is None:
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "compiled" / platform.node()))
    jax.config.update("jax_compilation_cache_max_size", 10**9)


def run(
  main: Callable[[Any], None],
  config: Any,
  description: str | None = None,
  *,
  prog: str | None = None,
  argv: Sequence[str] | None = None,
  markers: Sequence[Any] = (),
  default: Any = tyro.MISSING_NONPROP,
) -> int:
  """Reads options into `config` and calls `main` with it; 0, or 2 after one sentence on stderr.

  Args:
    main: the command. It raises one of USER_ERRORS for what the user did wrong.
    config: dataclass, or union of them, that holds the options.
    description: what `--help` says first; by default the docstring of `config`.
    prog: how the command is typed; by default how it was.
    argv: the options; by default those of the process.
    markers: tyro's.
    default: a config whose values are the defaults.
  """
  options, unknown = tyro.cli(
    config,
    prog=prog,
    description=description,
    args=argv,
    config=markers,
    default=default,
    return_unknown_args=True,
  )
  if unknown:
    refuse(unknown[0], sorted(_flags(options)), "`option` must be one that --help lists")
  _keep_programs()
  from specjax import switches

  try:
    several = "JAX_COORDINATOR_ADDRESS" in os.environ
    if several:
      from specjax import distributed

      distributed.start()
    switches.check()
    with switches.held(), contextlib.ExitStack() as stack:
      if several and not distributed.first():  # one speaks
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
      main(options)
  except USER_ERRORS as error:
    print(sentence(error), file=sys.stderr)
    return 2
  return 0
