"""Which kind of device a computation is compiled for."""

import jax


def platform() -> str:
  """cpu, gpu or tpu: of the mesh that is set, or where jax would run."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform
