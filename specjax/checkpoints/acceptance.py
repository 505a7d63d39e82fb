"""SpecDec++'s acceptance head on disk: config.json beside a safetensors file of float32.

config.json names the target and the draft model that the head was trained for, and its shape.
"""

import functools
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from specjax import checks, schema
from specjax.base import Params
from specjax.checkpoints.heads import MOST, check, read_config, read_tensors, write
from specjax.draft_length.specdecpp import AcceptanceHead

_WEIGHTS = "acceptance.safetensors"
_SCHEMA = {"blocks": functools.partial(checks.whole, most=MOST), "width": int}


class Loaded(NamedTuple):
  """An acceptance head as it was read: how many blocks it has, and its params."""

  blocks: int
  params: Params


def load(directory: str | pathlib.Path, width: int) -> Loaded:
  """The acceptance head in a directory, for a draft model of width E.

  Raises:
    ValueError: no acceptance head, one for another width, or damaged tensors.
  """
  raw, path = read_config(directory), pathlib.Path(directory) / _WEIGHTS
  if not {"blocks", "width"} <= raw.keys():
    raise ValueError(f"{directory}/config.json has no blocks and width: this is no acceptance "
                     "head.")  # fmt: skip
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json", _SCHEMA)
  blocks = own["blocks"]
  if own["width"] != width:
    raise ValueError(f"acceptance={str(directory)!r} is for a draft model of width "
                     f"{own['width']}, not {width}.")  # fmt: skip
  example = jax.ShapeDtypeStruct((1, width), jnp.float32)
  key = jax.eval_shape(lambda: jax.random.key(0))
  shapes = flatten_dict(jax.eval_shape(AcceptanceHead(blocks).init, key, example), sep="/")
  tensors = read_tensors(path)
  check(tensors, {name: x.shape for name, x in shapes.items()}, path)
  params = {name: jnp.asarray(x, jnp.float32) for name, x in tensors.items()}
  return Loaded(blocks, unflatten_dict(params, sep="/"))


def save(
  directory: str | pathlib.Path, blocks: int, params: Params, *, target: str, draft: str
) -> None:
  """Writes what `load` reads.

  Args:
    blocks: how many the head has.
    params: its weights.
    target, draft: names of the two models.

  Raises:
    ValueError: a weight is not finite.
  """
  tensors = {name: np.asarray(x) for name, x in flatten_dict(params, sep="/").items()}
  width = tensors["params/out"].shape[1]
  raw = {"blocks": blocks, "width": width, "target": target, "draft": draft}
  write(pathlib.Path(directory) / _WEIGHTS, tensors, raw)
