"""The command line, whose commands are the classes of `arguments`.

`commands`, which imports jax, is imported when a command runs, so that `--help` answers at once.
"""

import sys
from collections.abc import Sequence

import tyro

from specjax import script
from specjax.arguments import (
  Bench,
  Chat,
  Convert,
  Corpus,
  Denoise,
  Generate,
  Info,
  List,
  Memory,
  Serve,
  Tune,
)
from specjax.moved import MOVED


def _run(args) -> None:
  from specjax import commands

  commands.run(args)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; 0, or 2 after one sentence on stderr that says what was wrong with it."""
  argv = sys.argv[1:] if argv is None else argv
  moved = MOVED.get(argv[0], {}) if argv else {}
  for flag in (argument.partition("=")[0] for argument in argv):
    if flag in moved:
      print(f"error: {flag} is now {moved[flag]}.", file=sys.stderr)
      return 2
  return script.run(
    _run,
    Generate | Chat | Serve | Denoise | Bench | Tune | Memory | Convert | Corpus | List | Info,
    "Parallel decoding of language models in JAX.",
    prog="specjax",
    argv=argv,
    markers=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
  )


if __name__ == "__main__":
  sys.exit(main())
