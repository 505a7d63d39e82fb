"""The kernel through the compilers of four TPU generations."""

import json
import os
import subprocess
import sys

import pytest

from specjax.kernels import topology
from specjax.kernels.tree_attention import aot


@pytest.fixture(scope="module")
def reports():
  """What the compilers said, read from a process of its own: libtpu does not share one."""
  reason = topology.absent()
  if reason is not None:
    pytest.skip(reason)
  command = [sys.executable, "-m", "specjax.kernels.tree_attention.aot"]
  ran = subprocess.run(
    command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
  )
  assert ran.returncode == 0, ran.stderr
  return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("generation", topology.GENERATIONS)
def test_every_shape_of_interest_compiles(reports, generation):
  rows = [row for row in reports if row["generation"] == generation]
  assert len(rows) == len(list(aot.shapes()))
  assert not [row for row in rows if "error" in row]
  assert all(row["temp_bytes"] < row["argument_bytes"] / 4 for row in rows)
