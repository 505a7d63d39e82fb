"""A filter on disk: config.json, which names its model, beside model.safetensors of float32."""

import pathlib

import jax.numpy as jnp
import numpy as np

from specjax import schema
from specjax.checkpoints.heads import check, read_config, read_tensors, write
from specjax.diffusion.policies import Filter

_WEIGHTS = "model.safetensors"


def save(directory: str | pathlib.Path, params: Filter, *, base: str) -> None:
  """Writes what `load` reads; `params.least` is f32[].

  Args:
    base: name of the model.

  Raises:
    ValueError: a weight is not finite.
  """
  tensors = {name: np.asarray(x, np.float32) for name, x in params._asdict().items()}
  config = {"policy": "learned", "base": base, "window": len(params.out_bias)}
  write(pathlib.Path(directory) / _WEIGHTS, tensors, config)


def load(directory: str | pathlib.Path) -> Filter:
  """A filter, its `least` f32[].

  Raises:
    ValueError: no filter, or tensors that are missing, extra or misshapen.
  """
  config = read_config(directory)
  if config.get("policy") != "learned":
    raise ValueError(f"{directory}/config.json lacks policy='learned': this is no filter.")
  path = pathlib.Path(directory) / _WEIGHTS
  tensors = read_tensors(path)
  own = schema.fields(config, {"window": int}, f"{directory}/config.json", ["window"])
  W, H = own["window"], tensors["into_bias"].size if "into_bias" in tensors else 0
  shapes = {"into": (H, W), "into_bias": (H,), "out": (W, H), "out_bias": (W,), "least": ()}
  check(tensors, shapes, path)
  return Filter(**{name: jnp.asarray(tensors[name], jnp.float32) for name in shapes})
