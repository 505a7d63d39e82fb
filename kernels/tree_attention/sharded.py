"""Tree attention on a mesh: its data axis divides the batch, its model axis the heads.

XLA cannot look into a kernel, so each device is told which rows and heads are its own.
"""

from collections.abc import Callable

import jax
from jax import Array
from jax.sharding import PartitionSpec

from specjax.kernels.platform import mesh_axis
from specjax.kernels.tree_attention.quantised import Cached
from specjax.kernels.tree_attention.reference import Result

Attention = Callable[[Array, Cached, Cached, Array, Array, Array, Array], Result]


def over_mesh(attention: Attention, batch: int, heads: int) -> Attention:
  """`attention` run on every device of the mesh that is set, for the rows and heads it holds.

  Args:
    attention: a function of q, k_cache, v_cache, prefix, k_tree, v_tree and tree_mask, see
      `api.tree_attention`.
    batch: B. An axis that does not divide it is not used.
    heads: K. The same holds for it.
  """
  data, model = mesh_axis("data", batch), mesh_axis("model", heads)
  if data is None and model is None:
    return attention
  of_rows, of_heads = PartitionSpec(data), PartitionSpec(data, model)
  return jax.shard_map(
    attention,
    in_specs=(of_heads, of_heads, of_heads, of_rows, of_heads, of_heads, of_rows),
    out_specs=of_heads,
    check_vma=False,
  )
