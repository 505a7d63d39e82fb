"""Rules of recurrent layers over trees: which calls the GPU's kernel serves, and their call.

Letters: those of `models.recurrence`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType, PartitionSpec

from specjax.kernels.platform import device, mesh_axis

NODES = 32  # of more the matrices [N, N] do not fit in a thread block's registers
_TILE = 16  # the least of a product's sizes

Definition = Callable[..., tuple[Array, Array]]
"""(memory, q, k, v, gate, rate or None, mask bool[B, N, N], goes_on bool[B, N]) -> (what the nodes
read, their updates), both f32[B, H, N, F]; in XLA."""


def refusal(memory: Array, q: Array) -> str | None:
  """Why the kernel does not serve a call with memory f32[B, H, C, F] and q f32[B, K, N, C] on the
  devices for which it is compiled, or None."""
  if not any(name in device().device_kind for name in ("H100", "H200")):
    return f"the device is {device().device_kind}, not an H100 or H200"
  if any(size < _TILE or size & (size - 1) for size in memory.shape[2:]):
    C, F = memory.shape[2:]
    return f"a memory has {C} x {F} numbers, not powers of 2 from {_TILE} on"
  if q.shape[2] > NODES:
    return f"there are {q.shape[2]} nodes, more than {NODES}"
  mesh = jax.sharding.get_abstract_mesh()
  axes = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
  if axes.get("model") == AxisType.Auto and mesh_axis("model", q.shape[1]) is None:
    return f"{q.shape[1]} key heads cannot be spread over {mesh.shape['model']} devices"
  return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def evaluate(
  definition: Definition,
  memory: Array,
  q: Array,
  k: Array,
  v: Array,
  gate: Array,
  rate: Array | None,
  mask: Array,
  goes_on: Array,
) -> tuple[Array, Array]:
  """What `definition` gives, by the kernel; its derivatives are those of the definition.

  On a mesh the batch is spread over the axis "data" and heads over "model".
  """
  from specjax.kernels.tree_recurrence import pallas_gpu  # seconds that others need not wait

  data, model = mesh_axis("data", q.shape[0]), mesh_axis("model", q.shape[1])
  kernel: Callable[..., tuple[Array, Array]] = pallas_gpu.evaluate
  if data or model:  # XLA cannot look into a kernel
    rows, heads = PartitionSpec(data), PartitionSpec(data, model)
    kernel = jax.shard_map(
      kernel, out_specs=heads, check_vma=False, in_specs=(*(heads,) * 6, rows, rows)
    )
  return kernel(memory, q, k, v, gate, rate, *(x.astype(jnp.float32) for x in (mask, goes_on)))


def _forward(definition: Definition, *given: Any) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
  return evaluate(definition, *given), given


def _backward(definition: Definition, given: tuple[Any, ...], slopes: Any) -> tuple[Any, ...]:
  *floats, mask, goes_on = given
  _, back = jax.vjp(lambda *floats: definition(*floats, mask, goes_on), *floats)
  return *back(slopes), None, None


evaluate.defvjp(_forward, _backward)
