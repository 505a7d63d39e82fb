"""Block sizes that `tune` measured on this machine: a file in the user's cache directory."""

import functools
import json
import os
import pathlib
import warnings

Sizes = dict[str, dict[str, int]]  # of a device kind and a class of calls


def path() -> pathlib.Path:
  """Where they lie; $XDG_CACHE_HOME is ~/.cache by default."""
  home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  return pathlib.Path(home) / "specjax" / "tree_attention.json"


@functools.cache
def read(file: pathlib.Path) -> Sizes:
  """What `save` wrote, once a process; nothing, and a warning, where the file is anything else."""
  try:
    sizes = json.loads(file.read_text())
    return {str(kind): {**of_class} for kind, of_class in sizes.items()}
  except FileNotFoundError:
    return {}
  except (OSError, ValueError, TypeError, AttributeError) as error:
    warnings.warn(f"{file} is not used, delete it: {error}.", stacklevel=2)
    return {}


def save(file: pathlib.Path, device_kind: str, sizes: dict[str, int]) -> None:
  """Adds to the file; sizes of the same classes of calls are replaced."""
  known = read(file)
  known = known | {device_kind: known.get(device_kind, {}) | sizes}
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(json.dumps(known, indent=1))
  read.cache_clear()
