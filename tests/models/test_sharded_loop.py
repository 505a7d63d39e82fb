"""A whole generation loop of an 8B model's width through the compilers of TPUs and GPUs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from specjax.kernels import topology

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "compile" / "sharded_loop.py"


def report(topology_name, out, *options):
  """What the script finds for one layer, batch 2 and 8 nodes."""
  reason = topology.absent(topology_name)
  if reason is not None:
    pytest.skip(reason)
  small = ["--topologies", topology_name, "--layers", "1", "--batch", "2", "--drafted", "7",
           "--out", str(out), *options]  # fmt: skip
  ran = subprocess.run(
    [sys.executable, SCRIPT, *small], env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  return json.loads((out / "summary.json").read_text())["topologies"][0]


@pytest.mark.full
def test_a_tpu_layer_has_its_kernel_and_two_sums_and_copies_no_cache(tmp_path):
  row = report("v5e:4x4", tmp_path)
  assert row["kernels"] == 1
  assert row["cache_copies"] == 0
  assert "collective-permute" not in row["collectives"]
  of_large_arrays = 2 + 1  # of the layer, of the embedding
  of_small_ones = 10
  assert row["collectives"]["all-reduce"] <= of_large_arrays + of_small_ones


@pytest.mark.full
def test_a_gpu_layer_copies_no_cache(tmp_path):
  row = report("h100:1", tmp_path)
  assert row["cache_copies"] == 0
  assert row["temp_bytes"] < row["cache_bytes"]


@pytest.mark.full
def test_one_chip_reads_weights_of_8_bits(tmp_path):
  """No product writes a matrix in bfloat16 to memory first: the LM head alone would be 1 GB."""
  row = report("v5e:1", tmp_path, "--weights", "int8")
  weights = 2 * 128256 * 4096 + 4096 * (6144 + 4096 + 3 * 14336)
  assert weights < row["argument_bytes"] - row["cache_bytes"] < 1.01 * weights
  assert row["temp_bytes"] < 0.2e9
