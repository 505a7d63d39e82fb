"""Where weights and caches lie on a mesh with axes "data" and "model".

Heads, columns of the MLP and the vocabulary are spread over "model", rows of a batch over "data";
every product with spread columns is followed by one with spread rows.
"""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from specjax.base import Params

COLUMNS, ROWS = PartitionSpec("model"), PartitionSpec(None, "model")  # of weights [out, in]
KV_CACHE = PartitionSpec("data", "model")  # [B, K, S, C]
_OF_WEIGHT = {
  "qkv": COLUMNS, "qkv_bias": COLUMNS, "gate_up": COLUMNS, "embedding": COLUMNS,
  "lm_head": COLUMNS, "out": ROWS, "down": ROWS,
}  # fmt: skip


def of_params(params: Params, mesh: jax.sharding.Mesh) -> Any:
  """A NamedSharding for each weight; norms are everywhere."""

  def place(path, _):
    return NamedSharding(mesh, _OF_WEIGHT.get(path[-1].key, PartitionSpec()))

  return jax.tree_util.tree_map_with_path(place, params)
