"""Kept work: the folder where it lies, and what determines a file of it.

A key is a mapping for JSON of ingredients by name: settings, and digests of what is too large to be
shown. It lies beside the file, and is compared when the file is read. Whoever keeps work names all
that its content depends on.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks

Key = Mapping[str, Any]


def cache_dir() -> pathlib.Path:
  """The folder of what is kept for later runs; $XDG_CACHE_HOME is ~/.cache by default."""
  cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  return pathlib.Path(cache) / "specjax"


def digest(parts: Iterable[Any]) -> str:
  """A short hash of texts and arrays in order."""
  sha = hashlib.sha256()
  for part in parts:
    sha.update(part.encode() if isinstance(part, str) else np.asarray(part).tobytes())
  return sha.hexdigest()[:16]


def of_weights(params: Any) -> str:
  """Of a tree of weights, their names and shapes; the same whatever dtype it was loaded in."""
  parts: list[Any] = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    x = jnp.asarray(leaf)
    parts += [
      f"{jax.tree_util.keystr(path)} {x.shape}",
      x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x,
    ]
  return digest(parts)


def of_files(path: str | pathlib.Path) -> str:
  """Of a file, or of the files of a directory; of the name alone where it is neither."""
  path = pathlib.Path(path)
  files = sorted(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else [path]
  contents = (np.fromfile(x, np.uint8) for x in files if x.is_file())
  return digest([*([] if path.exists() else [str(path)]), *contents])


def differences(there: Key, here: Key, free: Collection[str] = ()) -> str:
  """The ingredients that differ, by name, but those in `free`: each with its old and its new value.

  It is empty where the keys are equal. A setting that one of them does not know, and that is off in
  the other, is no difference: a newer version may have added it.
  """
  here = json.loads(json.dumps(here))

  def same(k: str) -> bool:
    known = k in there and k in here
    return there.get(k) == here.get(k) or not (known or there.get(k) or here.get(k))

  changed = sorted(k for k in there.keys() | here.keys() if k not in free and not same(k))
  return ", ".join(f"{k}={there.get(k)!r} (now {here.get(k)!r})" for k in changed)


def beside(path: pathlib.Path) -> pathlib.Path:
  """Where the key of a file is kept."""
  return path.with_name(f"{path.name}.key.json")


def check(name: str, path: pathlib.Path, there: Key, here: Key) -> None:
  """Raises ValueError where the file that the option `name` gives was made with another key."""
  changed = differences(there, here)
  if changed:
    raise ValueError(
      f"{name}={str(path)!r} was made with {changed}: use the same settings, or "
      "choose another file."
    )


def read(path: pathlib.Path) -> Key | None:
  """The key beside a file; None where it has none."""
  file = beside(path)
  return checks.read_json(file) if file.exists() else None
