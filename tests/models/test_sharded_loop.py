"""A whole generation loop of an 8B model's width over 16 chips, through the TPU compiler."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from specjax.kernels import topology

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "sharded_loop.py"


def test_a_layer_has_its_kernel_and_two_sums_and_no_cache_is_copied():
  reason = topology.absent()
  if reason is not None:
    pytest.skip(reason)
  small = ["--topologies", "v5e:4x4", "--layers", "1", "--batch", "2", "--drafted", "7"]
  ran = subprocess.run(
    [sys.executable, SCRIPT, *small], env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  row = json.loads(ran.stdout)
  assert row["kernels"] == 1
  assert row["cache_copies"] == 0
  assert "collective-permute" not in row["collectives"]
  of_large_arrays = 2 + 1  # of the layer, of the embedding
  of_small_ones = 7
  assert row["collectives"]["all-reduce"] <= of_large_arrays + of_small_ones
