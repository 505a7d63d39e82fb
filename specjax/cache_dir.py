"""Where later runs find what earlier ones kept."""

import os
import pathlib


def home() -> pathlib.Path:
  """The folder of what is kept for later runs; $XDG_CACHE_HOME is ~/.cache by default."""
  cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  return pathlib.Path(cache) / "specjax"
