"""More than one device: processes that run one command together, and arrays over a mesh.

Letters: B batch.

Every process of a command (`jax.distributed`) has its own devices and is started with

    JAX_COORDINATOR_ADDRESS=HOST:PORT    of process 0, or `auto` where jax finds out by itself, as
                                         on Cloud TPU and under Slurm
    JAX_NUM_PROCESSES=4                  with an address
    JAX_PROCESS_ID=0                     with an address, 0 to 3

They see the same files. Process 0 writes; what the others need is read once it is there. A mesh may
span the devices of all. Where none of these variables is set, there is one process, and nothing
here does anything.
"""

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import jax
from jax import Array, lax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from specjax.kernels.platform import mesh_axis

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
LONGEST = 7 * 24 * 3600  # seconds that a process waits for another
_meetings = itertools.count()


def start() -> None:
  """Joins the processes that the environment names; nothing where it names none.

  Raises:
    ValueError: the variables do not say which process of how many this is, or the others do not
      answer.
  """
  address = os.environ.get(ADDRESS)
  if address is None or jax.distributed.is_initialized():
    return
  try:
    if address == "auto":
      os.environ.pop(ADDRESS)  # else jax takes it for an address
      jax.distributed.initialize(shutdown_timeout_seconds=LONGEST)
      return
    count, index = (_number(name) for name in (COUNT, INDEX))
    if not 0 <= index < count:
      raise ValueError(
        f"`{INDEX}` must be between 0 and {COUNT} - 1, which is {count - 1}, got {index}."
      )
    jax.distributed.initialize(address, count, index, shutdown_timeout_seconds=LONGEST)
  except RuntimeError as error:
    raise ValueError(
      f"{ADDRESS}={address!r}: the processes did not find each other: {error}"
    ) from error


def _number(name: str) -> int:
  text = os.environ.get(name, "")
  if not text.isdecimal():
    raise ValueError(f"`{name}` must be an integer where {ADDRESS} is set, got {text!r}.")
  return int(text)


def first() -> bool:
  """Whether this is the process that writes."""
  return jax.process_index() == 0


def wait() -> None:
  """Until every process is here. The devices stay free, so that it may take hours."""
  if jax.process_count() == 1:
    return
  from orbax.checkpoint import multihost

  meet = multihost.get_barrier_sync_fn()
  assert meet is not None  # there are several processes
  meet(key=f"specjax-{next(_meetings)}", timeout_ms=1000 * LONGEST)


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
  """Process 0 does what is inside before the others do.

  What it has written they find, so that work which is done once and kept is not done again.
  """
  if not first():
    wait()
  try:
    yield
  finally:
    if first():
      wait()


@contextlib.contextmanager
def in_turn_or_together() -> Iterator[None]:
  """`in_turn`, but under a mesh all do it at once, as they must run the passes over a mesh.

  Then the first alone may write, after `met` and before the end.
  """
  if jax.sharding.get_mesh().empty:
    with in_turn():
      yield
    return
  yield
  wait()


def met() -> None:
  """Within `in_turn_or_together`: every process has read what was there before."""
  if not jax.sharding.get_mesh().empty:
    wait()


def fetch(tree: Any) -> Any:
  """The arrays on the host of every process, also those that are spread over several."""

  def here(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
      return jax.device_get(x)
    return multihost_utils.process_allgather(x, tiled=True)

  return jax.tree.map(here, tree)


# How the small arrays of a round lie where a mesh is set: rows over "data", whole on "model".


def shard_batch(tree: Any) -> Any:
  """Arrays [B, ..] with their rows over "data" alone, inside jit; as they are where no mesh is set.

  Without it XLA spreads a draft over "model" as it does what is made of it, and then gathers it in
  every layer.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return tree
  return jax.tree.map(lambda x: lax.with_sharding_constraint(x, _of_rows(x)), tree)


def shard_nodes(x: Array) -> Array:
  """An array [B, N, ..] with its rows over "data" and its nodes over "model", inside jit; as it is
  where no mesh is set or "model" does not divide the nodes.

  Without it XLA for GPUs gathers the distributions of all nodes on every device, as the branches of
  a conditional have it.
  """
  nodes = mesh_axis("model", x.shape[1])
  if nodes is None:
    return x
  return lax.with_sharding_constraint(x, PartitionSpec(mesh_axis("data", len(x)), nodes))


def shard_texts(tree: Any) -> Any:
  """Arrays [B, T, ..] with rows over "data" and tokens over "sequence", where a mesh is set."""
  if jax.sharding.get_abstract_mesh().empty:
    return tree

  def shard(x: Array) -> Array:
    axes = mesh_axis("data", len(x)), mesh_axis("sequence", x.shape[1])
    return lax.with_sharding_constraint(x, PartitionSpec(*axes))

  return jax.tree.map(shard, tree)


def shard_over_all(tree: Any) -> Any:
  """Arrays [B, T, ..] with their rows over all devices of the mesh, for work that spreads rows and
  their tokens alone: only an axis "sequence" divides T, and no rows.

  They stay as they are where no mesh is set; where its devices do not divide B, "data" does.
  """
  mesh = jax.sharding.get_abstract_mesh()
  rows = tuple(axis for axis in mesh.axis_names if axis != "sequence")
  count = math.prod(mesh.shape[axis] for axis in rows)
  if mesh.empty or any(len(x) % count for x in jax.tree.leaves(tree)):
    return shard_texts(tree)

  def shard(x: Array) -> Array:
    tokens = mesh_axis("sequence", x.shape[1])
    return lax.with_sharding_constraint(x, PartitionSpec(rows, tokens))

  return jax.tree.map(shard, tree)


def replicate(tree: Any) -> Any:
  """Arrays that every device of the mesh has, as they are where none is set.

  A head's weights that lie in parts are gathered before they are used at all depths; otherwise XLA
  gathers what they are multiplied with. They are sent as they are given: XLA would gather float32
  and round it afterwards.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return tree
  tree = lax.optimization_barrier(tree)
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
