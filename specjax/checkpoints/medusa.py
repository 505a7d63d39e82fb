"""Medusa heads on disk, with the tensor names of FasterDecoding's checkpoints.

`{h}.{l}.linear.weight` and `.bias` are residual block l of head h, `{h}.{L}.weight` its vocabulary
matrix; heads that share the target's LM head, as Medusa's legacy trainer writes them, have no
vocabulary matrix.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from specjax import schema
from specjax.base import Params
from specjax.checkpoints import heads, published
from specjax.checkpoints.heads import Loaded, check, read_config
from specjax.drafters.medusa import MedusaConfig
from specjax.drafters.medusa import medusa as build
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.trees.static import Choices

_WEIGHTS = "medusa_lm_head.safetensors"
_FILES = (_WEIGHTS, "medusa_lm_head.pt")
_SCHEMA = {
  "medusa_num_heads": published.COUNT, "medusa_num_layers": published.COUNT,
  "medusa_choices": heads.choices,
}  # fmt: skip


def _shapes(c: MedusaConfig, model: Config) -> dict[str, tuple[int, ...]]:
  shapes: dict[str, tuple[int, ...]] = {}
  for h in range(c.depth):
    for i in range(c.blocks):
      shapes[f"{h}.{i}.linear.weight"] = (model.width, model.width)
      shapes[f"{h}.{i}.linear.bias"] = (model.width,)
    if not c.shared:
      shapes[f"{h}.{c.blocks}.weight"] = (model.vocab_size, model.width)
  return shapes


def recognises(raw: dict[str, Any]) -> bool:
  """Whether a config.json is of this format."""
  return "medusa_num_heads" in raw


def load(directory: str | pathlib.Path, model: Config, dtype: DTypeLike = jnp.float32) -> Loaded:
  """Heads for the target `model`, and their tree where `medusa_choices` has one.

  Raises:
    ValueError: a config that is not Medusa's, or missing, extra or misshapen tensors. Those of
      Vicuna 7B say 2 heads beside a file of 5: `medusa_num_heads` must be corrected.
  """
  raw = read_config(directory)
  for key in ("medusa_num_heads", "medusa_num_layers"):
    if key not in raw:
      raise ValueError(f"{directory}/config.json lacks {key}: these are no Medusa heads.")
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json", list(_SCHEMA)[:2])
  (weights, tensors), blocks = published.read(directory, _FILES), own["medusa_num_layers"]
  config = MedusaConfig(
    own["medusa_num_heads"], blocks,
    shared=not any(name.endswith(f".{blocks}.weight") for name in tensors),
  )  # fmt: skip
  held = config.depth
  while _shapes(dataclasses.replace(config, depth=held + 1), model).keys() <= tensors.keys():
    held += 1
  if held > config.depth:
    raise ValueError(f"{directory}/config.json says medusa_num_heads={config.depth}, and "
                     f"{weights.name} holds {held} heads.")  # fmt: skip
  check(tensors, _shapes(config, model), weights)

  def stack(pattern: str) -> jnp.ndarray:
    return jnp.asarray(np.stack([tensors[pattern.format(h)] for h in range(config.depth)]), dtype)

  params = {}
  for i in range(blocks):
    params[f"block_{i}"] = stack(f"{{}}.{i}.linear.weight")
    params[f"bias_{i}"] = stack(f"{{}}.{i}.linear.bias")
  if not config.shared:
    params["lm_head"] = stack(f"{{}}.{blocks}.weight")
  choices = own.get("medusa_choices", ())
  return Loaded(build(target(model), config), {"params": params}, choices, None, config, model)


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
    ValueError: a draft vocabulary, or a weight that is not finite in `dtype`.
  """
  published.refuse_vocabulary(params, "medusa")
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  leaves = params["params"]
  tensors = {}
  for h in range(config.depth):
    for i in range(config.blocks):
      tensors[f"{h}.{i}.linear.weight"] = leaves[f"block_{i}"][h]
      tensors[f"{h}.{i}.linear.bias"] = leaves[f"bias_{i}"][h]
    if not config.shared:
      tensors[f"{h}.{config.blocks}.weight"] = leaves["lm_head"][h]
  with np.errstate(over="ignore"):
    tensors = {k: np.asarray(v).astype(jnp.dtype(dtype)) for k, v in tensors.items()}
  for name, tensor in tensors.items():
    if not np.isfinite(tensor).all():
      raise ValueError(f"tensor {name} is not finite in dtype {jnp.dtype(dtype).name}.")
  save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
  raw = {
    "medusa_num_heads": config.depth,
    "medusa_num_layers": config.blocks,
    "base_model_name_or_path": base,
    "medusa_choices": [list(path) for path in choices],
  }
  (directory / "config.json").write_text(json.dumps(raw) + "\n")
