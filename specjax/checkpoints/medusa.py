"""Medusa heads on disk, with the tensor names of FasterDecoding's checkpoints.

`{h}.{l}.linear.weight` and `.bias` are residual block l of head h, `{h}.{L}.weight` its vocabulary
matrix; heads that share the target's LM head have no vocabulary matrix.
"""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from specjax.base import Params
from specjax.drafters.medusa import MedusaConfig
from specjax.trees.static import Choices

_WEIGHTS = "medusa_lm_head.safetensors"
_KEYS = ("medusa_num_heads", "medusa_num_layers", "medusa_choices", "vocab_size", "hidden_size")


def _shapes(c: MedusaConfig) -> dict[str, tuple[int, ...]]:
  shapes: dict[str, tuple[int, ...]] = {}
  for h in range(c.heads):
    for i in range(c.blocks):
      shapes[f"{h}.{i}.linear.weight"] = (c.width, c.width)
      shapes[f"{h}.{i}.linear.bias"] = (c.width,)
    if not c.shared:
      shapes[f"{h}.{c.blocks}.weight"] = (c.vocab_size, c.width)
  return shapes


def load(
  directory: str | pathlib.Path, dtype: DTypeLike = jnp.float32
) -> tuple[MedusaConfig, Params, list[list[int]]]:
  """Heads and their tree; the first n - 1 paths are the best tree of n nodes.

  Raises:
    ValueError: a config that is not Medusa's, or missing, extra or misshapen tensors.
  """
  directory = pathlib.Path(directory)
  file, weights = directory / "config.json", directory / _WEIGHTS
  if not file.is_file():
    raise ValueError(f"{directory} has no config.json: these are no Medusa heads.")
  try:
    raw = json.loads(file.read_text())
  except ValueError as error:
    raise ValueError(f"{file} is not JSON: {error}.") from error
  for key in _KEYS:
    if key not in raw:
      raise ValueError(f"{file} lacks {key}: these are no Medusa heads.")
  if not weights.is_file():
    raise ValueError(f"{directory} has no {_WEIGHTS}.")
  try:
    tensors = load_file(weights)
  except SafetensorError as error:
    raise ValueError(f"{weights} is truncated or no safetensors file: {error}.") from error
  blocks = raw["medusa_num_layers"]
  config = MedusaConfig(
    raw["vocab_size"], raw["hidden_size"], raw["medusa_num_heads"], blocks,
    shared=not any(name.endswith(f".{blocks}.weight") for name in tensors),
  )  # fmt: skip
  shapes = _shapes(config)
  for name in sorted(shapes.keys() ^ tensors.keys()):
    state = "lacks" if name in shapes else "has no place for"
    raise ValueError(f"{weights} {state} tensor {name}.")
  for name, shape in shapes.items():
    if tensors[name].shape != shape:
      raise ValueError(f"tensor {name} has shape {tensors[name].shape}, expected {shape}.")

  def stack(pattern: str) -> jnp.ndarray:
    return jnp.asarray(np.stack([tensors[pattern.format(h)] for h in range(config.heads)]), dtype)

  params = {}
  for i in range(blocks):
    params[f"block_{i}"] = stack(f"{{}}.{i}.linear.weight")
    params[f"bias_{i}"] = stack(f"{{}}.{i}.linear.bias")
  if not config.shared:
    params["vocabulary"] = stack(f"{{}}.{blocks}.weight")
  return config, {"params": params}, raw["medusa_choices"]


def save(
  directory: str | pathlib.Path,
  config: MedusaConfig,
  params: Params,
  choices: Choices,
  *,
  base: str,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes what `load` reads. `base` names the target.

  Raises:
    ValueError: a weight is not finite in `dtype`.
  """
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  leaves = params["params"]
  tensors = {}
  for h in range(config.heads):
    for i in range(config.blocks):
      tensors[f"{h}.{i}.linear.weight"] = leaves[f"block_{i}"][h]
      tensors[f"{h}.{i}.linear.bias"] = leaves[f"bias_{i}"][h]
    if not config.shared:
      tensors[f"{h}.{config.blocks}.weight"] = leaves["vocabulary"][h]
  with np.errstate(over="ignore"):
    tensors = {k: np.asarray(v).astype(jnp.dtype(dtype)) for k, v in tensors.items()}
  for name, tensor in tensors.items():
    if not np.isfinite(tensor).all():
      raise ValueError(f"tensor {name} is not finite in dtype {jnp.dtype(dtype).name}.")
  save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
  raw = {
    "medusa_num_heads": config.heads,
    "medusa_num_layers": config.blocks,
    "base_model_name_or_path": base,
    "hidden_size": config.width,
    "vocab_size": config.vocab_size,
    "medusa_choices": [list(path) for path in choices],
  }
  (directory / "config.json").write_text(json.dumps(raw) + "\n")
