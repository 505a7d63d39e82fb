"""A target and a drafter whose caches are in pages, see `models.pages`."""

import dataclasses
import functools
from typing import Any

import jax
from jax import Array

from specjax.base import KV, Cache, Context, Drafter, Features, LayeredTarget, Params
from specjax.models import hybrid, transformer
from specjax.models.config import Config
from specjax.models.pages import begun


def unlike(config: Any) -> str:
  """What a network has that no cache in pages keeps; "" where it has nothing such."""
  if not isinstance(config, Config):
    return "layers of another kind"
  return "" if config.causal else "attention to what follows"


@functools.cache
def paged(config: Config) -> LayeredTarget:
  """The network of a config over caches in pages; one object for each, so that jit caches hit.

  What `prefill` makes has pages for B rows of its capacity. Whoever shares pages makes tables of
  his own, see `serving.pool`. Latents lie in pages as keys and values do. A layer with a window has
  pages for the whole text, and a recurrent one a state of its own for each row.

  Raises:
    ValueError: a network with what `unlike` names.
  """
  if kind := unlike(config):
    raise ValueError(f"a network whose cache is in pages must have no {kind}.")
  lm = transformer.target(config)

  def prefill(params: Params, tokens: Array, length: Array, capacity: int, hidden_layers=()):
    cache, features = lm.prefill(params, tokens, length, capacity, hidden_layers)
    return hybrid.in_pages(cache) if config.recurrent else begun(cache), features

  return dataclasses.replace(lm, prefill=prefill)


def _fits(x: Any, capacity: int) -> bool:
  """Whether a cache has, of all layers, S = `capacity` rows of keys and of values."""
  if not isinstance(x, Cache):
    return False
  each = jax.tree.leaves(x.kv, is_leaf=lambda y: isinstance(y, KV))
  return all(
    isinstance(k, Array) and isinstance(v, Array) and k.shape[2] == v.shape[2] == capacity
    for kv in each
    for k, v in zip(*kv, strict=True)
  )


@functools.cache
def drafting(drafter: Drafter) -> Drafter:
  """A drafter whose own caches are in pages; one object for each, so that jit caches hit.

  They are those of an EAGLE head's layers, or of a draft model. Each has a row where the target's
  has one, so one table serves for all. Caches of other kinds stay as they are.
  """

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    def cut(x: Any) -> Any:
      return begun(x) if _fits(x, capacity) else x

    state = drafter.init(
      params, target_params, context=context, features=features, capacity=capacity
    )
    return jax.tree.map(cut, state, is_leaf=lambda x: isinstance(x, Cache))

  return drafter._replace(init=init)
