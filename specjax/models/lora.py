"""Low-rank updates of a frozen network's matrices (LoRA, Hu et al. 2021, arXiv 2106.09685).

All matrices of the layers have an update but those of experts; those of the embedding and the head
have none. `merge` adds the updates to the weights; `gate` keeps them apart, for some rows of a pass
alone or, to train them, for all: the gradient of a whole matrix would take as long as its product.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from specjax.base import Params
from specjax.models.groups import Groups
from specjax.models.panels import Panels
from specjax.models.sharding import apart


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gated:
  """A matrix [out, in] whose update applies to some rows of its input [..., N, in].

  Attributes:
    weight: an array or an Int8.
    down: [rank, in].
    up: [out, rank].
    first: the number of the first such row; all later ones follow (static).
  """

  weight: Any
  down: Array
  up: Array
  first: int = dataclasses.field(metadata={"static": True})

  def __getitem__(self, outputs: slice) -> "Gated":
    """Some of the outputs."""
    return Gated(self.weight[outputs], self.down, self.up[outputs], self.first)


def weight(module: nn.Module, name: str, init: Callable, shape: tuple[int, ...]) -> Any:
  """A parameter [out, in] of a module; Flax would refuse shapes that a gated one's arrays have."""
  held: Any = module.get_variable("params", name)
  return held if isinstance(held, Gated | Groups | Panels) else module.param(name, init, shape)


def start(key: Array, frozen: Params, rank: int) -> Params:
  """Updates that are 0: {layer: {matrix: {"down" f32[rank, in], "up" f32[out, rank]}}}.

  Their scale is 1, as with the published alpha = rank.
  """
  updates = {}
  for path, weight in sorted(flatten_dict(frozen["params"]).items()):
    if path[0].startswith("layer_") and len(path) == len(weight.shape) == 2:
      key, drawn = jax.random.split(key)
      out, into = weight.shape
      down = jax.random.normal(drawn, (rank, into)) / into**0.5
      updates[path] = {"down": down, "up": jnp.zeros((out, rank))}
  return unflatten_dict(updates)


def _matrices(updates: Params) -> list[tuple[str, str, Mapping[str, Array]]]:
  """(layer, matrix, update) of each."""
  return [(layer, name, x) for layer, own in updates.items() for name, x in own.items()]


def _replaced(frozen: Params, new: Mapping[str, Mapping[str, Any]]) -> Params:
  """The weights with the matrices {layer: {matrix: value}} in place of theirs."""
  layers = {layer: {**frozen["params"][layer], **own} for layer, own in new.items()}
  return {**frozen, "params": {**frozen["params"], **layers}}


def merge(frozen: Params, updates: Params) -> Params:
  """The weights with their updates."""
  new: dict[str, dict[str, Array]] = {layer: {} for layer in updates}
  for layer, name, update in _matrices(updates):
    weight = frozen["params"][layer][name]
    new[layer][name] = weight + (update["up"] @ update["down"]).astype(weight.dtype)
  return _replaced(frozen, new)


def gate(frozen: Params, updates: Params, first: int) -> Params:
  """The weights with updates for the rows from number `first` (static) on.

  Weights that `sharding.split` has parted have parts of the update.
  """
  new: dict[str, dict[str, Gated]] = {layer: {} for layer in updates}
  for layer, name, update in _matrices(updates):
    own = frozen["params"][layer]
    if name in own:
      new[layer][name] = Gated(own[name], update["down"], update["up"], first)
      continue
    names = apart(name)
    ends = np.cumsum([0, *(own[part].shape[0] for part in names)]).tolist()
    for part, (a, b) in zip(names, itertools.pairwise(ends), strict=True):
      new[layer][part] = Gated(own[part], update["down"], update["up"][a:b], first)
  return _replaced(frozen, new)
