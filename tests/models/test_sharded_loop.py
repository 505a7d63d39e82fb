"""A whole generation loop of an 8B model's width over four chips, through the TPU compiler."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from specjax.kernels import topology

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "sharded_loop.py"


def test_every_layer_has_its_kernel_and_no_cache_is_copied():
  reason = topology.absent()
  if reason is not None:
    pytest.skip(reason)
  small = ["--topologies", "v5e:2x2", "--layers", "1", "--batch", "2", "--drafted", "7"]
  ran = subprocess.run(
    [sys.executable, SCRIPT, *small], env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  row = json.loads(ran.stdout)
  assert row["kernels"] == 1
  assert row["cache_copies"] == 0
