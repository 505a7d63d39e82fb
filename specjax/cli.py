"""The command line: generate, denoise, bench, tune, convert, list, info.

`commands`, which imports jax, is imported when a command runs, so that `--help` answers at once.
"""

import sys
from collections.abc import Sequence

import tyro

from specjax.arguments import Bench, Convert, Denoise, Generate, Info, List, Tune


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; 0, or 2 after printing what was wrong with the request on stderr."""
  args = tyro.cli(
    Generate | Denoise | Bench | Tune | Convert | List | Info,
    prog="specjax",
    description="Parallel decoding of language models in JAX.",
    args=argv,
    config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
  )
  from specjax import commands

  try:
    commands.COMMANDS[type(args)](args)
  except (ValueError, FloatingPointError, OSError) as error:
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    return 2
  return 0


if __name__ == "__main__":
  sys.exit(main())
