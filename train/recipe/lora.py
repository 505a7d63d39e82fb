"""Low-rank updates of a frozen network's matrices (LoRA, Hu et al. 2021, arXiv 2106.09685).

All matrices of the layers have an update; those of the embedding and the head have none.
"""

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params


def start(key: Array, frozen: Params, rank: int) -> Params:
  """Updates that are 0: {path: {"down" f32[rank, in], "up" f32[out, rank]}} of matrices [out, in].

  Their scale is 1, as with the published alpha = rank.
  """
  updates = {}
  for path, weight in jax.tree_util.tree_leaves_with_path(frozen):
    name = jax.tree_util.keystr(path)
    if weight.ndim == 2 and "['layer_" in name:
      key, drawn = jax.random.split(key)
      out, into = weight.shape
      down = jax.random.normal(drawn, (rank, into)) / into**0.5
      updates[name] = {"down": down, "up": jnp.zeros((out, rank))}
  return updates


def merge(frozen: Params, updates: Params) -> Params:
  """The weights with their updates."""

  def add(path, weight: Array) -> Array:
    update = updates.get(jax.tree_util.keystr(path))
    if update is None:
      return weight
    return weight + (update["up"] @ update["down"]).astype(weight.dtype)

  return jax.tree_util.tree_map_with_path(add, frozen)
