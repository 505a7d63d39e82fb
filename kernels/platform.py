"""Which device a computation is compiled for."""

import jax
from jax.sharding import AbstractDevice


def device() -> jax.Device | AbstractDevice:
  """Of the mesh that is set, or where jax would run; has `platform` and `device_kind`."""
  return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def platform() -> str:
  """cpu, gpu or tpu."""
  return device().platform
