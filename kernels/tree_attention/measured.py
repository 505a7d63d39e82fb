"""Block sizes that `tune` measured on this machine: a file in the user's cache directory."""

import functools
import json
import pathlib
import warnings

import jax

from specjax import checks
from specjax.fingerprint import cache_dir

Sizes = dict[str, dict[str, int]]  # rows per block, by device kind and class of calls


def path() -> pathlib.Path:
  """The file, one for each version of jax, whose compiler decides what is fast."""
  return cache_dir() / f"tree_attention.jax-{jax.__version__}.json"


@functools.cache
def read(file: pathlib.Path) -> Sizes:
  """What `save` wrote, read once a process; nothing, with a warning, where the file is damaged."""
  if not file.exists():
    return {}
  try:
    return {kind: {**of_class} for kind, of_class in checks.read_json(file).items()}
  except (ValueError, TypeError) as error:
    warnings.warn(f"{file} is not used, delete it: {error}.", stacklevel=2)
    return {}


def save(file: pathlib.Path, device_kind: str, sizes: dict[str, int]) -> None:
  """Adds sizes to the file, in place of those that it has for the same classes of calls."""
  known = read(file)
  known = known | {device_kind: known.get(device_kind, {}) | sizes}
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(json.dumps(known, indent=1))
  read.cache_clear()
