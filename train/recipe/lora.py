"""Low-rank updates of a frozen network's matrices (LoRA, Hu et al. 2021, arXiv 2106.09685).

All matrices of the layers have one, those of the embedding and the head do not.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params


def _is_updated(path: tuple[Any, ...], weight: Array) -> bool:
  return weight.ndim == 2 and any(str(key.key).startswith("layer_") for key in path)


def start(key: Array, frozen: Params, rank: int) -> Params:
  """Updates that change nothing yet: {path: {"down" f32[rank, in], "up" f32[out, rank]}}.

  Args:
    frozen: weights, matrices [out, in].
    rank: of an update; its scale is 1, as with the published alpha = rank.
  """
  updates = {}
  for path, weight in jax.tree_util.tree_leaves_with_path(frozen):
    if _is_updated(path, weight):
      key, drawn = jax.random.split(key)
      out, into = weight.shape
      down = jax.random.normal(drawn, (rank, into)) / into**0.5
      updates[jax.tree_util.keystr(path)] = {"down": down, "up": jnp.zeros((out, rank))}
  return updates


def merge(frozen: Params, updates: Params) -> Params:
  """The weights with their updates."""

  def add(path, weight: Array) -> Array:
    update = updates.get(jax.tree_util.keystr(path))
    if update is None:
      return weight
    return weight + (update["up"] @ update["down"]).astype(weight.dtype)

  return jax.tree_util.tree_map_with_path(add, frozen)
