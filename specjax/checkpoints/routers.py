"""What `train.skipping` leaves on disk: low-rank updates of a model, and routers of its layers.

A config.json names the model that they were trained for, beside float32 safetensors.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import harmless, trained_for
from specjax.checkpoints.files import check, read_config, read_tensors, write
from specjax.checkpoints.trained_for import Identity
from specjax.models import lora
from specjax.models.config import Config
from specjax.models.groups import Groups
from specjax.models.int8 import Int8
from specjax.models.panels import Panels
from specjax.models.skipping.first import ROUTERS, Routers
from specjax.sampling import new_key

_WEIGHTS = "model.safetensors"


def save(
  directory: str | pathlib.Path, updates: Params, routers: Routers, *, base: str | Identity
) -> None:
  """Writes what `load` reads; ValueError where a weight is not finite.

  Args:
    updates: of `lora.start`, of one rank.
    base: the model, or its name alone.
  """
  tensors = {**flatten_dict(updates, sep="/"), **routers._asdict()}
  rank = next(x.shape[0] for name, x in tensors.items() if name.endswith("/down"))
  tensors = {name: np.asarray(x, np.float32) for name, x in tensors.items()}
  config = {"skipping": "first", "rank": rank, **trained_for.record(base=base)}
  write(pathlib.Path(directory) / _WEIGHTS, tensors, config)


def load(directory: str | pathlib.Path, config: Config, params: Params) -> Params:
  """The weights of a model with its updates merged, and its routers beside them.

  It raises ValueError where the directory holds no routers, tensors that are missing, extra or
  misshapen, as those for another model are, or where the model's weights are in 8 bits or spread.
  """
  found = read_config(directory, "part with routers")
  if found.get("skipping") != "first":
    raise ValueError(f"{directory}/config.json lacks skipping='first': there are no routers here.")
  keys = {"skipping", "rank", "base", trained_for.KEY}
  harmless.known_keys(found, f"{directory}/config.json", keys, {})
  rank = checks.fields_of(found, {"rank": int}, f"{directory}/config.json", ["rank"])["rank"]
  if isinstance(params["params"]["layer_0"].get("qkv"), Int8 | Groups | Panels | None):
    raise ValueError(
      "routers change float weights on one device: with them `weights` must be 'float' and `mesh` "
      "None, see `Model.on`."
    )
  updates = jax.eval_shape(functools.partial(lora.start, rank=rank), new_key(0), params)
  shapes = {name: x.shape for name, x in flatten_dict(updates, sep="/").items()}
  shapes |= {"w": (config.layers, config.width), "b": (config.layers,)}
  path = pathlib.Path(directory) / _WEIGHTS
  check(tensors := read_tensors(path), shapes, path)
  routers = {name: jnp.asarray(tensors.pop(name), jnp.float32) for name in Routers._fields}
  updates = unflatten_dict({k: jnp.asarray(x) for k, x in tensors.items()}, sep="/")
  return {**lora.merge(params, updates), ROUTERS: routers}
