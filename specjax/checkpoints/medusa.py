"""Medusa heads on disk, with the tensor names of FasterDecoding's checkpoints.

`{h}.{l}.linear.weight` and `.bias` are residual block l of head h, `{h}.{L}.weight` its vocabulary
matrix. The blocks of a head are one module there, which files repeat with equal values. Heads that
share the target's LM head, as Medusa's legacy trainer writes them, have no
vocabulary matrix.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints import harmless, heads, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, Layout, scatter
from specjax.heads.medusa import MedusaConfig
from specjax.heads.medusa import medusa as build
from specjax.models.config import Config
from specjax.models.transformer import target

_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_KEYS = ("medusa_num_heads", "medusa_num_layers")
_SCHEMA = dict.fromkeys(_KEYS, published.COUNT) | {"medusa_choices": heads.choices}


def _layout(c: MedusaConfig, model: Config) -> Layout:
  """The parameters, with those of head h under h; our arrays hold all heads together."""
  E = model.width
  layout: Layout = {}
  for h in map(str, range(c.depth)):
    for i in range(c.blocks):
      layout[f"block_{i}", h] = [Fusion(f"{h}.{i}.linear.weight", (E, E))]
      layout[f"bias_{i}", h] = [Fusion(f"{h}.{i}.linear.bias", (E,))]
    if not c.shared:
      layout["lm_head", h] = [Fusion(f"{h}.{c.blocks}.weight", (model.vocab_size, E))]
  return layout


def _check_one_block(params: Params, c: MedusaConfig) -> None:
  """Raises ValueError for blocks that differ, of which the published code would keep the last."""
  for i in range(1, c.blocks):
    for kind in ("block", "bias"):
      first, other = jax.tree.leaves(params[f"{kind}_0"]), jax.tree.leaves(params[f"{kind}_{i}"])
      if not all(map(np.array_equal, first, other)):
        raise ValueError(
          f"blocks={c.blocks}: the blocks of a head differ, which the format medusa has as one."
        )


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """Heads for the target `model`, and their tree where `medusa_choices` has one.

  The published config.json for Vicuna 7B says 2 heads beside a file of 5. That is refused:
  `medusa_num_heads` must be corrected.
  """
  own = published.fields(raw, _SCHEMA, directory, _KEYS, "these are no Medusa heads")
  where = f"{directory}/config.json"
  published.check_keys(raw, where, _SCHEMA, harmless.OF_TARGET)
  published.check_base(raw, model, where)
  (path, tensors), blocks = published.read(directory, _FILES), own["medusa_num_layers"]
  shared = not any(name.endswith(f".{blocks}.weight") for name in tensors)
  config = MedusaConfig(own["medusa_num_heads"], blocks, shared=shared)
  held = config.depth
  while all(
    part.name in tensors
    for (part,) in _layout(dataclasses.replace(config, depth=held + 1), model).values()
  ):
    held += 1
  if held > config.depth:
    raise ValueError(
      f"{directory}/config.json says medusa_num_heads={config.depth}, and "
      f"{path.name} holds {held} heads."
    )
  apart = published.gather(tensors, _layout(config, model), path, dtype)
  _check_one_block(apart, config)
  params = {k: jnp.stack([x[str(h)] for h in range(config.depth)]) for k, x in apart.items()}
  choices = own.get("medusa_choices", ())
  return LoadedHead(build(target(model), config), {"params": params}, choices, None, config, model)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """Heads with their tree."""
  config = loaded.config
  _check_one_block(loaded.params["params"], config)
  apart = {
    k: {str(h): x[h] for h in range(config.depth)} for k, x in loaded.params["params"].items()
  }
  tensors = scatter({"params": apart}, _layout(config, loaded.network), dtype)
  raw = dict(zip(_KEYS, (config.depth, config.blocks), strict=True))
  return _FILES[0], tensors, raw | {"medusa_choices": [list(path) for path in loaded.choices]}
