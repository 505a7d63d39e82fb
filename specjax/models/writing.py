"""How rows are written into caches: one array after another, row by row of a batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from specjax.kernels.platform import mesh_axis

Index = int | Array
UNROLLED = 4  # rows; with 8 a program took 1.7 times as long to compile as with 1


def spread(x: Array) -> PartitionSpec | None:
  """How x [B, K, S, C] is spread over the mesh that is set; None where there is none."""
  axes = mesh_axis("data", x.shape[0]), mesh_axis("model", x.shape[1])
  return PartitionSpec(*axes) if any(axes) else None


def row_of(x: Array, b: Index) -> Array:
  """[1, ..]: row b of x [B, ..]."""
  return x[b : b + 1] if isinstance(b, int) else lax.dynamic_slice_in_dim(x, b, 1)


def rows_at(tree: Any, index: Array) -> Any:
  """Rows index i32[M] of arrays [B, ..]; few are sliced, for which XLA on CPU copies memory."""

  def rows(x: Array) -> Array:
    if len(index) > UNROLLED:
      return x[index]
    return jnp.concatenate([lax.dynamic_slice_in_dim(x, i, 1) for i in index])

  return jax.tree.map(rows, tree)


def written(
  window: Callable[..., Array], put: Callable[..., Array], kv: Any, fresh: Any, *per_row: Array
) -> Any:
  """put(buffer, window(buffer, fresh, *per_row), b, *per_row) for every row b of every array.

  These are the arrays of kv and of `fresh`; per_row is [B, ..]. Few rows are written one after the
  other, and more by a loop over them, so that a program does not grow with its batch. It is a scan:
  XLA for TPUs refuses the same loop with a counter where a mesh shares the rows.
  """

  def write_all(kv: Any, fresh: Any, *per_row: Array) -> Any:
    def unrolled(buffer: Array, fresh: Array) -> Array:
      rows = window(buffer, fresh, *per_row)
      for b in range(len(rows)):
        buffer = put(buffer, rows, b, *per_row)
      return buffer

    if len(per_row[0]) <= UNROLLED:
      return jax.tree.map(unrolled, kv, fresh)
    windows = jax.tree.map(lambda x, y: window(x, y, *per_row), kv, fresh)

    def row(kv: Any, b: Array) -> tuple[Any, None]:
      return jax.tree.map(lambda x, y: put(x, y, b, *per_row), kv, windows), None

    return lax.scan(row, kv, jnp.arange(len(per_row[0]), dtype=jnp.int32))[0]

  # On a mesh each device writes the rows and heads that it holds, without communication.
  of_heads = spread(jax.tree.leaves(fresh)[0])
  if of_heads is not None:
    of_rows = PartitionSpec(of_heads[0])
    # Layers may differ in how many heads they have.
    places = jax.tree.map(lambda x: spread(x) or PartitionSpec(), fresh)
    write_all = jax.shard_map(
      write_all,
      in_specs=(places, places, *[of_rows] * len(per_row)),
      out_specs=places,
      check_vma=False,
    )
  return write_all(kv, fresh, *per_row)
