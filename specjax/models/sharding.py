"""Where weights and caches lie on a mesh with axes "data" and "model".

Heads, columns of the MLP and the vocabulary are spread over "model", rows of a batch over "data";
every product with spread columns is followed by one with spread rows. After the last, a device has
nodes with their whole vocabulary.
"""

from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from specjax.base import Params
from specjax.kernels.platform import mesh_axis

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


def spread_nodes(logits: Array) -> Array:
  """[B, N, V], the nodes over "model" where a mesh is set; elsewhere as they are.

  A law is sorted, summed and drawn from. Of a vocabulary in parts XLA would gather all of it, for
  every node, on every device.
  """
  B, N, V = logits.shape
  rows, nodes, words = mesh_axis("data", B), mesh_axis("model", N), mesh_axis("model", V)
  if nodes is None:
    return logits
  # As the product leaves them, first: else XLA gathers the weights to have nodes from the start.
  logits = jax.lax.with_sharding_constraint(logits, PartitionSpec(rows, None, words))
  return jax.lax.with_sharding_constraint(logits, PartitionSpec(rows, nodes))
