"""Weights on disk: config.json beside safetensors, read, checked and written."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specjax import checks

Tensors = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]
_DTYPES = ("F32", "F16", "BF16", "F64", "BOOL", "U8", "U16", "I8", "I16", "I32", "I64")


def read_config(directory: str | pathlib.Path, what: str = "draft head") -> dict[str, Any]:
  """The config.json of a directory that should hold a `what`; ValueError where it has none."""
  file = pathlib.Path(directory) / "config.json"
  if not file.exists():
    raise ValueError(f"{directory} has no config.json: this is no {what}.")
  return checks.read_json(file)


def read_tensors(path: pathlib.Path, prefix: str = "") -> Tensors:
  """The tensors of a safetensors file whose names begin so; ValueError where it is absent or
  damaged."""
  if not path.is_file():
    raise ValueError(f"{path.parent} has no {path.name}.")
  try:
    with safe_open(path, "numpy") as file:
      every = file.keys()
      names = [name for name in every if name.startswith(prefix)]
      for name in names:
        if (dtype := file.get_slice(name).get_dtype()) not in _DTYPES:
          checks.refuse(f"{path}: dtype of tensor {name}", dtype, f"one of {', '.join(_DTYPES)}")
      return {name: file.get_tensor(name) for name in names}
  except SafetensorError as error:
    raise ValueError(f"{path} is truncated or no safetensors file: {error}.") from error


def check(tensors: Tensors, shapes: Shapes, path: pathlib.Path) -> None:
  """Raises ValueError, which names the file, where a tensor is missing, extra or misshapen."""
  for name in sorted(shapes.keys() ^ tensors.keys()):
    state = "lacks" if name in shapes else "has no place for"
    raise ValueError(f"{path} {state} tensor {name}.")
  for name, shape in shapes.items():
    if tensors[name].shape != shape:
      raise ValueError(f"tensor {name} has shape {tensors[name].shape}, expected {shape}.")


def write(file: pathlib.Path, tensors: Tensors, config: Mapping[str, Any]) -> None:
  """Writes tensors and config.json to a directory that is made if absent.

  A file of the suffix .pt is torch's own, any other safetensors.

  It raises ValueError where a tensor is not finite, or torch is needed and absent, and then writes
  nothing.
  """
  for name, x in tensors.items():
    if not np.isfinite(x.astype(np.float32)).all():
      raise ValueError(f"tensor {name} is not finite in dtype {x.dtype.name}.")
  if file.suffix == ".pt":
    _write_torch(file, tensors)
  else:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file, metadata={"format": "pt"})
  (file.parent / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _write_torch(file: pathlib.Path, tensors: Tensors) -> None:
  try:
    import torch
  except ImportError:
    raise ValueError(f"{file} needs torch, which is not installed.") from None
  file.parent.mkdir(parents=True, exist_ok=True)
  torch.save({name: torch.from_numpy(np.array(x)) for name, x in tensors.items()}, file)
