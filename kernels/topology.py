"""TPUs that are not there: the compiler itself, libtpu, runs on any Linux machine.

It compiles for a described topology and executes nothing.
"""

import importlib.util
import os
from collections.abc import Sequence

import jax

GENERATIONS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "v7x": "tpu7x:2x2x1"}


def absent() -> str | None:
  """Why nothing can be compiled here; None if it can."""
  if importlib.util.find_spec("libtpu") or "TPU_LIBRARY_PATH" in os.environ:
    return None
  return "libtpu is not installed (pip install libtpu)"


def devices(name: str) -> Sequence[jax.Device]:
  """The chips of a topology, e.g. "v5e:4x4"; they hold no arrays.

  The process should have JAX_PLATFORMS=cpu, or jax looks for a TPU of its own.
  """
  from jax.experimental import topologies

  for variable, value in {
    "TPU_SKIP_MDS_QUERY": "1",  # do not ask a cloud which machine this is
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is taken, so none need be locked
  }.items():
    os.environ.setdefault(variable, value)
  return topologies.get_topology_desc(name, "tpu").devices
