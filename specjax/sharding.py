"""How the small arrays of a round lie where a mesh is set: rows over "data", whole on "model".

Letters: B batch.
"""

import functools
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import PartitionSpec

from specjax.kernels.platform import mesh_axis


def spread_rows(tree: Any) -> Any:
  """Arrays [B, ..] with their rows over "data" alone, inside jit; as they are where no mesh is set.

  Without it XLA spreads a draft over "model" as it does what is made of it, and then gathers it in
  every layer.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return tree
  return jax.tree.map(lambda x: lax.with_sharding_constraint(x, _of_rows(x)), tree)


def over_all(tree: Any) -> Any:
  """Arrays [B, ..] with their rows over all devices of the mesh, for work that spreads rows alone.

  They stay as they are where no mesh is set, or its devices do not divide B.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or any(len(x) % mesh.size for x in jax.tree.leaves(tree)):
    return tree
  rows = PartitionSpec(mesh.axis_names)
  return jax.tree.map(lambda x: lax.with_sharding_constraint(x, rows), tree)


def whole(tree: Any) -> Any:
  """Arrays that every device of the mesh has, as they are where none is set.

  A head's weights that lie in parts are gathered before they are used at all depths; otherwise XLA
  gathers what they are multiplied with.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return tree
  return jax.tree.map(lambda x: lax.with_sharding_constraint(x, PartitionSpec()), tree)


def _of_rows(x: Array) -> PartitionSpec:
  return PartitionSpec(mesh_axis("data", len(x)))


def top_k(values: Array, count: int) -> tuple[Array, Array]:
  """`lax.top_k` of values [B, ..], each device its own rows; XLA gathers all rows for it."""
  if jax.sharding.get_abstract_mesh().empty:
    return lax.top_k(values, count)
  rows = _of_rows(values)
  own = functools.partial(lax.top_k, k=count)
  values, places = jax.shard_map(own, in_specs=rows, out_specs=rows, check_vma=False)(values)
  return values, places
