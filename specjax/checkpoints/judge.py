"""A judge on disk: config.json, which names its target, beside model.safetensors of float32."""

import pathlib

import jax.numpy as jnp
import numpy as np

from specjax.checkpoints.heads import check, read_config, read_tensors, write
from specjax.models.config import Config
from specjax.verifiers.judge import Judge

_WEIGHTS = "model.safetensors"


def save(directory: str | pathlib.Path, params: Judge, *, base: str) -> None:
  """Writes what `load` reads.

  Args:
    base: name of the target.

  Raises:
    ValueError: a weight is not finite.
  """
  tensors = {name: np.asarray(x, np.float32) for name, x in params._asdict().items()}
  config = {"verifier": "judge", "base": base}
  write(pathlib.Path(directory) / _WEIGHTS, tensors, config)


def load(directory: str | pathlib.Path, model: Config) -> Judge:
  """A judge for the target `model`.

  Raises:
    ValueError: no judge, or tensors that are missing, extra or misshapen, as those of a judge for
      a target of another width are.
  """
  path = pathlib.Path(directory) / _WEIGHTS
  if read_config(directory).get("verifier") != "judge":
    raise ValueError(f"{directory}/config.json lacks verifier='judge': this is no judge.")
  tensors = read_tensors(path)
  check(tensors, {"w": (model.width,), "b": ()}, path)
  return Judge(jnp.asarray(tensors["w"], jnp.float32), jnp.asarray(tensors["b"], jnp.float32))
