"""Caches of causal models from names."""

from typing import Any

from specjax.base import Target
from specjax.decoding import spec
from specjax.decoding.model import Model
from specjax.decoding.spec import Part
from specjax.models.caches import CACHES, CacheKind
from specjax.models.compressed import compressed
from specjax.models.config import Config

DENSE = "dense"


def make_cache(part: Part) -> tuple[str, CacheKind]:
  """(canonical name, kind) of a part; ValueError for an unknown name or a number out of range."""
  builder = spec.look_up("cache", part, CACHES)
  name, arguments = spec.settle("cache", part, spec.knobs(builder))
  return name, builder(**arguments)


def config_of(model: Model, name: str) -> Config:
  """The model's config, if its network can have the cache `name`; ValueError otherwise."""
  if not isinstance(model.config, Config):
    raise ValueError(f"cache={name!r}: accepted for the Llama family, not for {model.name}.")
  return model.config


def build_cache(model: Model, given: Any) -> tuple[str, Target]:
  """(canonical name, the model over such a cache); `given` is a name, or a CacheKind.

  Raises:
    ValueError: an unknown name, or a model that has a sliding window or whose layers skip tokens.
  """
  if given == DENSE:
    return DENSE, model.target
  name, kind = (
    make_cache(spec.parse_one("cache", given)) if isinstance(given, str) else (given.name, given)
  )
  if model.skipping is not None:
    raise ValueError(f"cache={name!r}: accepted for a model without skipping.")
  return name, compressed(config_of(model, name), kind)
