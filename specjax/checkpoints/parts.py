"""Small trained parts on disk: judges, filters, energy networks, and acceptance heads of SpecDec++.

Each is a config.json, which names the models that it was trained for, beside float32 safetensors.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import harmless, trained_for
from specjax.checkpoints.files import Shapes, check, read_config, read_tensors, write
from specjax.checkpoints.heads import MOST
from specjax.checkpoints.trained_for import Identity
from specjax.diffusion.policies import Filter
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.models import energy, transformer
from specjax.models.config import Config
from specjax.models.energy import EnergyNetwork
from specjax.sampling import new_key
from specjax.verifiers.judge import Judge

_WEIGHTS, _OF_ACCEPTANCE = "model.safetensors", "acceptance.safetensors"
_BASE = ("base", trained_for.KEY)
ENERGY = "energy"  # the key by which the config.json of an energy network is known
_ACCEPTANCE = {"blocks": functools.partial(checks.whole, most=MOST), "width": int}


class Acceptance(NamedTuple):
  """An acceptance head: how many blocks it has, and its params."""

  blocks: int
  params: Params


def save(
  directory: str | pathlib.Path,
  part: Judge | Filter | EnergyNetwork | Acceptance,
  **models: str | Identity,
) -> None:
  """Writes what the loader of the part reads; ValueError where a weight is not finite.

  Args:
    part: its weights; `Filter.least` is f32[].
    models: those it was trained for, or their names: `base`, or an acceptance head's `target` and
      `draft`.
  """
  weights: Mapping[str, Any] = flatten_dict(part._asdict(), sep="/")
  config: dict[str, Any] = {"verifier": "judge"}
  file = _WEIGHTS
  if isinstance(part, Filter):
    config = {"policy": "learned", "window": len(part.out_bias)}
  elif isinstance(part, EnergyNetwork):
    config = {ENERGY: "nce", "hidden": len(part.out)}
  elif isinstance(part, Acceptance):
    weights, file = flatten_dict(part.params, sep="/"), _OF_ACCEPTANCE
    config = {"blocks": part.blocks, "width": weights["params/out"].shape[1]}
  tensors = {name: np.asarray(x, np.float32) for name, x in weights.items()}
  write(pathlib.Path(directory) / file, tensors, config | trained_for.record(**models))


def _read(path: pathlib.Path, shapes: Shapes) -> dict[str, Array]:
  check(tensors := read_tensors(path), shapes, path)
  return {name: jnp.asarray(tensors[name], jnp.float32) for name in shapes}


def load_judge(directory: str | pathlib.Path, model: Config) -> Judge:
  """A judge for the target `model`.

  It raises ValueError where the directory holds no judge, or tensors that are missing, extra or
  misshapen, as those of a judge for a target of another width are.
  """
  raw = read_config(directory, "judge")
  if raw.get("verifier") != "judge":
    raise ValueError(f"{directory}/config.json lacks verifier='judge': this is no judge.")
  harmless.known_keys(raw, f"{directory}/config.json", {"verifier", *_BASE}, {})
  return Judge(**_read(pathlib.Path(directory) / _WEIGHTS, {"w": (model.width,), "b": ()}))


def load_filter(directory: str | pathlib.Path) -> Filter:
  """A filter, its `least` f32[]; ValueError for no filter, or for tensors as in `load_judge`."""
  config, path = read_config(directory, "filter"), pathlib.Path(directory) / _WEIGHTS
  if config.get("policy") != "learned":
    raise ValueError(f"{directory}/config.json lacks policy='learned': this is no filter.")
  harmless.known_keys(config, f"{directory}/config.json", {"policy", "window", *_BASE}, {})
  W = checks.fields_of(config, {"window": int}, f"{directory}/config.json", ["window"])["window"]
  H = read_tensors(path).get("into_bias", np.empty(0)).size
  shapes = {"into": (H, W), "into_bias": (H,), "out": (W, H), "out_bias": (W,), "least": ()}
  return Filter(**_read(path, shapes))


def load_energy(directory: str | pathlib.Path, model: Config) -> EnergyNetwork:
  """An energy network for the denoiser `model`; ValueError for none, or for tensors as in
  `load_judge`."""
  raw, where = read_config(directory, "energy network"), f"{directory}/config.json"
  if raw.get(ENERGY) != "nce":
    raise ValueError(f"{where} lacks energy='nce': this is no energy network.")
  harmless.known_keys(raw, where, {ENERGY, "hidden", *_BASE}, {})
  hidden = checks.fields_of(raw, {"hidden": int}, where, ["hidden"])["hidden"]

  def shaped() -> dict[str, Any]:
    network = transformer.init(model, new_key(0))
    return energy.begin(new_key(0), network, model.width, hidden)._asdict()

  shapes = {k: x.shape for k, x in flatten_dict(jax.eval_shape(shaped), sep="/").items()}
  tensors = _read(pathlib.Path(directory) / _WEIGHTS, shapes)
  return EnergyNetwork(**unflatten_dict(tensors, sep="/"))


def load_acceptance(directory: str | pathlib.Path, width: int) -> Acceptance:
  """The acceptance head for a draft model of width E.

  It raises ValueError for no acceptance head, one of another width, or damaged tensors.
  """
  raw, where = read_config(directory, "acceptance head"), f"{directory}/config.json"
  if not _ACCEPTANCE.keys() <= raw.keys():
    raise ValueError(f"{where} has no blocks and width: this is no acceptance head.")
  harmless.known_keys(raw, where, {*_ACCEPTANCE, "target", "draft", trained_for.KEY}, {})
  own = checks.fields_of(raw, _ACCEPTANCE, where, _ACCEPTANCE)
  if own["width"] != width:
    raise ValueError(
      f"acceptance={str(directory)!r} is for a draft model of width {own['width']}, not {width}."
    )
  example = jax.ShapeDtypeStruct((1, width), jnp.float32)
  key = jax.eval_shape(lambda: new_key(0))
  shapes = flatten_dict(jax.eval_shape(AcceptanceHead(own["blocks"]).init, key, example), sep="/")
  path = pathlib.Path(directory) / _OF_ACCEPTANCE
  tensors = _read(path, {name: x.shape for name, x in shapes.items()})
  return Acceptance(own["blocks"], unflatten_dict(tensors, sep="/"))
