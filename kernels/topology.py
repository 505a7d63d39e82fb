"""Topologies of absent accelerators, whose compilers run on any Linux machine.

libtpu compiles for TPUs, and jax's CUDA plugin with NVIDIA's ptxas for GPUs. Nothing is executed.
The process should have JAX_PLATFORMS=cpu, or jax looks for chips of the machine.
"""

import importlib.util
import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

TPUS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "v7x": "tpu7x:2x2x1"}
GPUS = {"h100": "h100:1"}


class Chips(NamedTuple):
  """How chips are used.

  Attributes:
    topology: the smallest that has as many; the first ones are taken.
    data, model: chips along each axis of a mesh.
    gigabytes: memory of each.
  """

  topology: str
  data: int
  model: int
  gigabytes: int


CHIPS = {
  "v5e:1": Chips("v5e:2x2", 1, 1, 16), "v5e:2x2": Chips("v5e:2x2", 1, 4, 16),
  "v5e:4x4": Chips("v5e:4x4", 2, 8, 16), "v5p:1": Chips("v5p:2x2x1", 1, 1, 95),
  "v5p:2x2x1": Chips("v5p:2x2x1", 1, 4, 95), "v5p:2x2x2": Chips("v5p:2x2x2", 1, 8, 95),
  "v6e:2x4": Chips("v6e:2x4", 1, 8, 32), "v7x:2x2x1": Chips("tpu7x:2x2x1", 1, 8, 96),
  "v7x:2x2x2": Chips("tpu7x:2x2x2", 2, 8, 96), "h100:1": Chips("h100:1", 1, 1, 80),
  "h100:4": Chips("h100:4", 1, 4, 80), "h100:8": Chips("h100:8", 1, 8, 80),
}  # fmt: skip
"""Of a v7x a device is one of its two cores, with half of its memory."""

_H100 = """
device_description_str: "NVIDIA H100 80GB HBM3"
platform_name: "CUDA"
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_block_limit: 65536  registers_per_core_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472  l2_cache_size: 52428800
  memory_bandwidth: 3352320000000  device_memory_size: 84929347584
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
}
runtime_version { major: 12 minor: 9 }
dnn_version_info { major: 9 minor: 8 }
"""


def absent(name: str) -> str | None:
  """Why no program can be compiled here for a topology, or None where one can."""
  there = importlib.util.find_spec
  if not name.startswith("h100"):
    known = there("libtpu") or "TPU_LIBRARY_PATH" in os.environ
    return None if known else "libtpu is not installed (pip install libtpu)"
  missing = "the CUDA plugin is not installed (pip install jax[cuda12-local] nvidia-cuda-nvcc-cu12)"
  return None if there("jax_plugins") and there("jax_plugins.xla_cuda12") else missing


def devices(name: str) -> Sequence[jax.Device]:
  """The chips of a topology such as "v5e:4x4" or "h100:4"; they hold no arrays."""
  from jax.experimental import topologies

  chip, _, shape = name.partition(":")
  if chip == "h100":
    options = {"target_config": _H100, "topology": f"1x1x{shape}"}
    return topologies.get_topology_desc(chip, "cuda", **options).devices
  for variable, value in {
    "TPU_SKIP_MDS_QUERY": "1",  # do not ask a cloud which machine this is
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is taken, so none need be locked
  }.items():
    os.environ.setdefault(variable, value)
  return topologies.get_topology_desc(name, "tpu").devices


def mesh(name: str) -> Mesh:
  """The mesh of `CHIPS[name]` with axes "data" and "model"."""
  kind, data, model, _ = CHIPS[name]
  chips = np.array(devices(kind)[: data * model]).reshape(data, model)
  return Mesh(chips, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def check(names: Sequence[str]) -> None:
  """Raises ValueError where there is a name for which no program can be compiled here."""
  for name in names:
    reason = absent(name) if name in CHIPS else f"it is none of {', '.join(CHIPS)}"
    if reason is not None:
      raise ValueError(f"topologies={name!r}: {reason}.")
