"""Draft heads in any format, in and out: ours, or one in which heads are published."""

import dataclasses
import pathlib

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints import eagle, eagle3, heads, hydra, medusa, mlp_speculator
from specjax.checkpoints.heads import Loaded
from specjax.models.config import Config
from specjax.models.transformer import target

FORMATS = {
  "specjax": heads, "medusa": medusa, "hydra": hydra, "eagle": eagle, "eagle3": eagle3,
  "mlp_speculator": mlp_speculator,
}  # fmt: skip


def load(directory: str | pathlib.Path, model: Config, dtype: DTypeLike = jnp.float32) -> Loaded:
  """A head for the target `model`; the format is told by config.json.

  Raises:
    ValueError: a directory of no known format, or one that its format refuses.
  """
  raw = heads.read_config(directory)
  for kind in FORMATS.values():
    if kind.recognises(raw):
      return kind.load(directory, model, dtype)
  raise ValueError(f"{directory}/config.json is of no known format: {', '.join(FORMATS)} are.")


def save(
  directory: str | pathlib.Path,
  form: str,
  loaded: Loaded,
  model: Config,
  target_params: Params,
  *,
  base: str,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes a head in a format. Published formats but Medusa's keep no tree, and none hit rates.

  Args:
    form: a key of FORMATS: "specjax", or the head's own name.
    model, target_params: of the target.
    base: names the target.

  Raises:
    ValueError: a format that is not for this head, or that has no place for what it has.
  """
  name = loaded.head.name
  accepted = [key for key in FORMATS if key in ("specjax", name)]
  if form not in accepted:
    raise ValueError(f"to={form!r}: accepted for a head of {name} is {' or '.join(accepted)}.")
  config, params, network, choices = loaded.config, loaded.params, loaded.network, loaded.choices
  if form == "specjax":
    for field in dataclasses.fields(model):
      if (own := getattr(network, field.name)) != getattr(model, field.name):
        theirs = getattr(model, field.name)
        raise ValueError(f"{field.name}={own} of the head's layer is not the target's, {theirs}: "
                         "the format specjax cannot say so.")  # fmt: skip
    rates = loaded.hit_rates
    heads.save(directory, name, config, params, choices, rates, base=base, dtype=dtype)
  elif form == "medusa":
    medusa.save(directory, config, params, choices, base=base, dtype=dtype)
  elif form == "eagle":
    embedding = target(model).embed(target_params, jnp.arange(model.vocab_size)[None])[0]
    eagle.save(directory, config, params, network, embedding, base=base, dtype=dtype)
  else:
    FORMATS[form].save(directory, config, params, network, base=base, dtype=dtype)
