"""What the formats of published heads share: files, and names of tensors for our parameters."""

import functools
import json
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from specjax import checks
from specjax.base import Params
from specjax.checkpoints.heads import MOST, check, read_tensors
from specjax.checkpoints.hf import shards
from specjax.checkpoints.hf_layout import Layout
from specjax.drafters import draft_vocabulary

Tensors = dict[str, np.ndarray]

COUNT = functools.partial(checks.whole, least=1, most=MOST)
"""Accepts how many heads or blocks a config.json names."""


def read(directory: str | pathlib.Path, names: Sequence[str]) -> tuple[pathlib.Path, Tensors]:
  """(path, tensors) of the first of these files that is there, whole or in shards.

  Raises:
    ValueError: none is there, it is damaged, or it is torch's own and torch is not installed.
  """
  directory = pathlib.Path(directory)
  for path in (directory / name for name in names):
    index = path.with_name(f"{path.name}.index.json")
    if path.is_file():
      return path, _read_one(path)
    if index.is_file():
      return index, {k: v for shard in shards(index) for k, v in _read_one(shard).items()}
  raise ValueError(f"{directory} has no {' and no '.join(names)}.")


def _read_one(path: pathlib.Path) -> Tensors:
  return read_tensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _read_torch(path: pathlib.Path) -> Tensors:
  if not path.is_file():
    raise ValueError(f"{path.parent} has no {path.name}.")
  try:
    import torch
  except ImportError as error:
    raise ValueError(
      f"{path} needs torch, which is not installed: where it is, write "
      f"{path.with_suffix('.safetensors').name} with safetensors.torch.save_file({{k: v.clone() "
      f"for k, v in torch.load({path.name!r}).items()}}, ...)."
    ) from error
  try:
    state = torch.load(path, map_location="cpu", weights_only=True)
  except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
    raise ValueError(f"{path} is damaged, or holds more than tensors.") from error
  if not isinstance(state, dict) or not all(isinstance(x, torch.Tensor) for x in state.values()):
    raise ValueError(f"{path} holds something else than tensors by name.")
  # numpy has no bfloat16, and float32 holds every published dtype.
  return {k: (x.float() if x.is_floating_point() else x).numpy() for k, x in state.items()}


def gather(
  tensors: Tensors,
  layout: Layout,
  path: pathlib.Path,
  dtype: DTypeLike,
  *,
  copies: Mapping[str, str] | None = None,
  unused: Mapping[str, tuple[int, ...]] | None = None,
  others: Mapping[str, tuple[int, ...]] | None = None,
) -> Params:
  """Parameters of a layout.

  Args:
    path: of the tensors, for messages.
    dtype: of the parameters.
    copies: tensors that may be there and must equal another of the layout: (name, the other).
    unused: names and shapes of tensors that may be there.
    others: names and shapes of further tensors that must be there.

  Raises:
    ValueError: a tensor is missing, extra, misshapen or no float, or a copy differs.
  """
  parts = {part.name: part.shape for parts in layout.values() for part in parts}
  copies = {k: v for k, v in (copies or {}).items() if k in tensors}
  optional = {k: parts[v] for k, v in copies.items()} | dict(unused or {})
  # Old transformers wrote the rotary frequencies, which the config decides.
  there = {k: v for k, v in tensors.items() if not k.endswith("rotary_emb.inv_freq")}
  optional = {k: v for k, v in optional.items() if k in there}
  check(there, parts | optional | dict(others or {}), path)
  for name in parts:
    if not jnp.issubdtype(tensors[name].dtype, jnp.floating):
      raise ValueError(f"tensor {name} has dtype {tensors[name].dtype}; accepted are floats.")
  for name, other in copies.items():
    if not np.array_equal(tensors[name], tensors[other]):
      raise ValueError(f"tensors {name} and {other} differ, which this format has as one.")
  leaves = {
    key: jnp.asarray(np.concatenate([tensors[part.name] for part in parts]), dtype)
    for key, parts in layout.items()
  }
  return unflatten_dict(leaves)


def scatter(
  params: Params, layout: Layout, dtype: DTypeLike, copies: Mapping[str, str] | None = None
) -> Tensors:
  """`gather` undone, copies included.

  Raises:
    ValueError: parameters that are not those of the layout, or not finite in `dtype`.
  """
  leaves, tensors = flatten_dict(params["params"]), {}
  for key in sorted(layout.keys() ^ leaves.keys()):
    state = "lack" if key in layout else "have no place for"
    raise ValueError(f"the config and params disagree: params {state} {'/'.join(key)}.")
  for key, parts in layout.items():
    whole, row = np.asarray(leaves[key]), 0
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    if whole.shape != shape:
      raise ValueError(f"{'/'.join(key)} has shape {whole.shape}, the format calls for {shape}.")
    for part in parts:
      with np.errstate(over="ignore"):
        tensor = whole[row : row + part.shape[0]].astype(jnp.dtype(dtype), order="C")
      if not np.isfinite(tensor).all():
        raise ValueError(f"tensor {part.name} is not finite in dtype {jnp.dtype(dtype).name}.")
      tensors[part.name] = tensor
      row += part.shape[0]
  return tensors | {name: tensors[other] for name, other in (copies or {}).items()}


def write(
  directory: str | pathlib.Path, name: str, tensors: Tensors, raw: Mapping[str, Any]
) -> None:
  """A file of tensors beside the config.json `raw`."""
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  save_file(tensors, directory / name, metadata={"format": "pt"})
  (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def check_architecture(raw: Mapping[str, Any], accepted: Sequence[str]) -> None:
  """Raises ValueError for a config.json whose architecture is given, and none of these."""
  said = raw.get("architectures") or accepted
  names = [said] if isinstance(said, str) else said
  if not isinstance(names, Sequence) or not any(name in accepted for name in names):
    raise ValueError(f"architectures={said} in config.json: accepted is {' or '.join(accepted)}.")


def refuse_vocabulary(params: Params, kind: str) -> None:
  """Raises ValueError for a draft vocabulary, which this kind of head is not published with."""
  if draft_vocabulary.ids(params) is not None:
    raise ValueError(f"the format {kind} has no place for a draft vocabulary.")
