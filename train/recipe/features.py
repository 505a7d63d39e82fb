"""Hidden states of a frozen target on disk, computed once for every head that reads them.

A directory holds `manifest.json` (what the states depend on), `hidden.npy` and a `layer_I.npy` per
layer, [R, T, E], and `done`, the number of rows that are written. A killed run continues. A target
in 16 bits keeps its states as they are, another one in float16; bfloat16 is a file of uint16, since
numpy's format has no name for it.

Letters: R rows, T row length, E width.
"""

import math
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from specjax import checks, distributed
from specjax.base import Features
from specjax.data.packing import PackedRows
from specjax.fingerprint import differences, digest
from specjax.models import sharding
from specjax.names.load import Model
from specjax.train.recipe import forward
from specjax.train.recipe.run import write_json

VERSION = 2


def dtype_of(model: Model) -> np.dtype:
  """In which a model's states are kept."""
  return np.dtype(model.dtype) if np.dtype(model.dtype).itemsize == 2 else np.dtype(np.float16)


def _on_disk(dtype: DTypeLike) -> np.dtype:
  return np.dtype(np.float16 if dtype == np.float16 else np.uint16)


def _claim(
  directory: pathlib.Path, model: Model, rows: PackedRows, layers: Sequence[int]
) -> dict[str, Any]:
  """The manifest on disk, which must agree with what is asked for; it is written where absent."""
  here = {
    "version": VERSION,
    "model": digest(jax.tree.leaves(model.params)),  # in the dtype of its states
    "tokenizer": digest([model.tokenizer.inner.to_str()] if model.tokenizer else []),
    **{k: v for k, v in model.ingredients().items() if k.startswith("model.config.")},
    "rows": digest(rows),
    "shape": [*rows.tokens.shape, model.config.width],
    "layers": sorted(set(layers)),
  }
  file = directory / "manifest.json"
  if not file.exists():
    directory.mkdir(parents=True, exist_ok=True)
    write_json(file, here)
  there = checks.read_json(file)
  more = set(here["layers"]) <= set(there.get("layers") or ())  # layers of other heads
  changed = differences(there, here, free=("layers",) if more else ())
  if changed:
    raise ValueError(
      f"features={str(directory)!r} were computed with {changed}: choose another directory."
    )
  return there


def compute(
  model: Model,
  rows: PackedRows,
  layers: Sequence[int],
  directory: str | pathlib.Path,
  batch: int = 16,
) -> Features:
  """The states of `rows`, computed `batch` rows at a time where they are not on disk.

  Returns:
    Features with memory-mapped arrays [R, T, E] of `dtype_of(model)`, the `hidden_layers` in the
    order of `layers`.

  Raises:
    ValueError: the directory belongs to another target, tokenizer or rows, or lacks a
      layer; the states would not fit its disk; or a state is beyond that dtype.
  """
  directory = pathlib.Path(directory)
  with distributed.in_turn():
    there = _claim(directory, model, rows, layers)
  kept = there["layers"]
  paths = [directory / f"{name}.npy" for name in ("hidden", *(f"layer_{i}" for i in kept))]
  with distributed.in_turn_or_together():
    _write(model, rows, kept, paths, tuple(there["shape"]), directory / "done", batch)
  hidden, *own = (np.load(path, mmap_mode="r").view(dtype_of(model)) for path in paths)
  return Features(hidden, tuple(own[kept.index(i)] for i in layers))


def _announce(directory: pathlib.Path, size: int) -> None:
  """Says how many bytes will be written, before they are; ValueError where they do not fit."""
  there = sum(path.stat().st_size for path in directory.glob("*.npy"))
  free = shutil.disk_usage(directory).free + there
  if distributed.first():
    print(f"{size / 1e9:.2f} GB of hidden states will be written to {directory}.")
  if size > free:
    raise ValueError(
      f"features={str(directory)!r} would take {size / 1e9:.2f} GB; its disk has "
      f"{free / 1e9:.2f} GB: choose another directory, or train a head with "
      "--online."
    )


def _write(
  model: Model,
  rows: PackedRows,
  layers: Sequence[int],
  paths: Sequence[pathlib.Path],
  shape: tuple[int, ...],
  progress: pathlib.Path,
  batch: int,
) -> None:
  """Goes on with the files of `paths`, that of the last states and one of each layer."""
  done = int(progress.read_text()) if progress.exists() else 0
  distributed.met()
  if done == len(rows.tokens):
    return
  if not done:
    _announce(progress.parent, 2 * math.prod(shape) * len(paths))
  mode, several = "r+" if done else "w+", paths if distributed.first() else ()
  kept = dtype_of(model)
  files = [np.lib.format.open_memmap(path, mode, _on_disk(kept), shape) for path in several]
  run, params = forward.reader(model.config, tuple(layers), kept), model.spread().params
  for i, size, part in forward.parts(rows, batch, "hidden states", done):
    states = [x[:size] for x in distributed.fetch(run(params, sharding.dealt(part)))]
    if not all(np.isfinite(x).all() for x in states):
      raise ValueError(
        f"model={model.name!r} has states beyond {kept} in rows {i} to "
        f"{i + size - 1}: they cannot be kept; a head's training with --dtype "
        "bfloat16 keeps them, and with --online none are kept."
      )
    for file, x in zip(files, states, strict=bool(files)):
      file[i : i + size] = x.view(file.dtype)
      file.flush()
    if files:
      write_json(progress, i + size)
