"""The devices for which a computation is compiled."""

import jax
from jax.sharding import AbstractDevice, AxisType


def device() -> jax.Device | AbstractDevice:
  """A device of the mesh that is set, or else jax's first; it has `platform` and `device_kind`."""
  return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def platform() -> str:
  """The platform of `device`: cpu, gpu or tpu."""
  return device().platform


def mesh_axis(name: str, size: int) -> str | None:
  """`name`, if the mesh that is set has such an axis and the axis divides `size`; else None."""
  mesh = jax.sharding.get_abstract_mesh()
  axes = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
  return name if axes.get(name) == AxisType.Auto and size % mesh.shape[name] == 0 else None
