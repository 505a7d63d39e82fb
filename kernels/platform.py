"""Which devices a computation is compiled for."""

import jax
from jax.sharding import AbstractDevice, AxisType


def device() -> jax.Device | AbstractDevice:
  """Of the mesh that is set, or where jax would run; has `platform` and `device_kind`."""
  return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def platform() -> str:
  """cpu, gpu or tpu."""
  return device().platform


def mesh_axis(name: str, size: int) -> str | None:
  """`name`, where the mesh that is set has such an axis and it divides `size`; None elsewhere."""
  mesh = jax.sharding.get_abstract_mesh()
  axes = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
  return name if axes.get(name) == AxisType.Auto and size % mesh.shape[name] == 0 else None
