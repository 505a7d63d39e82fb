"""Caches of causal models from names."""

from typing import Any

from specjax.base import Target
from specjax.models.caches import CACHES, CacheKind
from specjax.models.compressed import compressed
from specjax.models.config import Config
from specjax.names import grammar
from specjax.names.grammar import Part
from specjax.names.load import Model

DENSE = "dense"


def make_cache(part: Part) -> tuple[str, CacheKind]:
  """(canonical name, kind) of a part; ValueError for an unknown name or a number out of range."""
  builder = grammar.look_up("cache", part, CACHES)
  name, arguments = grammar.bind("cache", part, grammar.parameters(builder))
  return name, builder(**arguments)


def config_of(model: Model, name: str) -> Config:
  """The model's config, if its network can have the cache `name`; ValueError otherwise."""
  if not isinstance(model.config, Config):
    raise ValueError(
      f"`cache` must be dense for {model.name}, which is not of the Llama family, got {name!r}."
    )
  return model.config


def build_cache(model: Model, given: Any) -> tuple[str, Target]:
  """(canonical name, the model over such a cache); `given` is a name, or a CacheKind.

  Raises:
    ValueError: an unknown name, or a model that has a sliding window or whose layers skip tokens.
  """
  if given == DENSE:
    return DENSE, model.target
  name, kind = (
    make_cache(grammar.parse_one("cache", given)) if isinstance(given, str) else (given.name, given)
  )
  if model.skipping is not None:
    raise ValueError(f"`cache` must be dense for a model that skips layers, got {name!r}.")
  return name, compressed(config_of(model, name), kind)
