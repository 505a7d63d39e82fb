"""What `train.duo` leaves on disk: the router and the small MLP of each layer of a model.

A config.json names the model that they were trained for, beside float32 safetensors.
"""

import pathlib

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import harmless, trained_for
from specjax.checkpoints.files import check, read_config, read_tensors, write
from specjax.checkpoints.trained_for import Identity
from specjax.models.config import Config
from specjax.models.skipping.duo import DUO

_WEIGHTS = "model.safetensors"


def save(directory: str | pathlib.Path, trained: Params, *, base: str | Identity) -> None:
  """Writes what `load` reads; ValueError where a weight is not finite.

  Args:
    trained: {layer: `Beside` as a dict}, of small MLPs of one width.
    base: the model, or its name alone.
  """
  tensors = {k: np.asarray(x, np.float32) for k, x in flatten_dict(trained, sep="/").items()}
  width = trained["layer_0"]["small_down"].shape[1]
  config = {"skipping": DUO, "width": width, **trained_for.record(base=base)}
  write(pathlib.Path(directory) / _WEIGHTS, tensors, config)


def load(directory: str | pathlib.Path, config: Config, params: Params) -> Params:
  """The weights of a model with its small MLPs and routers beside them.

  It raises ValueError where the directory holds none, tensors that are missing, extra or misshapen,
  as those for another model are, or where the model's MLPs are mixtures of experts.
  """
  found = read_config(directory, "part with small MLPs")
  if found.get("skipping") != DUO:
    raise ValueError(f"{directory}/config.json lacks skipping='duo': there are no small MLPs here.")
  if config.experts is not None:
    raise ValueError(
      "the target of small MLPs must be a model without experts: small MLPs stand beside dense "
      "ones."
    )
  keys = {"skipping", "width", "base", trained_for.KEY}
  harmless.known_keys(found, f"{directory}/config.json", keys, {})
  width = checks.fields_of(found, {"width": int}, f"{directory}/config.json", ["width"])["width"]
  E = config.width
  own = {"router": (3, E), "bias": (3,), "small_gate_up": (2 * width, E), "small_down": (E, width)}
  shapes = {f"layer_{i}/{k}": shape for i in range(config.layers) for k, shape in own.items()}
  path = pathlib.Path(directory) / _WEIGHTS
  check(tensors := read_tensors(path), shapes, path)
  trained = {k: jnp.asarray(x, jnp.float32) for k, x in tensors.items()}
  return {**params, DUO: unflatten_dict(trained, sep="/")}
