"""The command line, whose commands are the classes of `arguments`.

`commands`, which imports jax, is imported when a command runs, so that `--help` answers at once.
"""

import functools
import operator
import sys
from collections.abc import Sequence

import tyro

import specjax
from specjax import command_line
from specjax.cli.arguments import (
  Bench,
  BenchServe,
  Chat,
  Convert,
  Corpus,
  Denoise,
  Generate,
  Info,
  List,
  Memory,
  Search,
  Serve,
  Tune,
)

COMMANDS = {
  "generate": Generate, "search": Search, "chat": Chat, "serve": Serve, "denoise": Denoise,
  "bench": Bench, "bench-serve": BenchServe, "tune": Tune, "memory": Memory, "convert": Convert,
  "corpus": Corpus, "list": List, "info": Info,
}  # fmt: skip


def _run(args) -> None:
  from specjax.cli import commands

  commands.run(args)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; 0, or 2 after one sentence on stderr that says what was wrong with it."""
  argv = sys.argv[1:] if argv is None else argv
  if list(argv) == ["--version"]:
    print(f"specjax {specjax.__version__}")
    return 0
  if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
    command_line.refuse(argv[0], COMMANDS, f"`command` must be one of {', '.join(COMMANDS)}")
  return command_line.run(
    _run,
    functools.reduce(operator.or_, COMMANDS.values()),
    "Parallel decoding of language models in JAX.",
    prog="specjax",
    argv=argv,
    markers=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
  )
