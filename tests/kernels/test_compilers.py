"""The kernels through the compilers of four TPU generations and of a Hopper GPU."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from specjax.kernels import topology
from specjax.kernels.tree_attention import aot


@functools.cache
def output(chips: tuple[str, ...]) -> str:
  """What the compilers said, in a process of its own: libtpu does not share one."""
  ran = subprocess.run(
    [sys.executable, "-m", "specjax.kernels.tree_attention.aot", *chips],
    env=os.environ | {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_PTXAS": "1"},
    capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  return ran.stdout


def said(chip: str) -> str:
  """Of one chip; those of a compiler are asked for together."""
  family = topology.TPUS if chip in topology.TPUS else topology.GPUS
  reason = topology.absent(family[chip])
  if reason is not None:
    pytest.skip(reason)
  return output(tuple(family))


@pytest.mark.full
@pytest.mark.parametrize(
  ("chip", "served", "besides"),  # of the bytes of the arguments
  [(chip, 29, 1 / 4) for chip in topology.TPUS] + [(chip, 13, 1 / 3) for chip in topology.GPUS],
)
def test_every_shape_of_interest_compiles(chip, served, besides):
  rows = [json.loads(line) for line in said(chip).splitlines() if line.startswith("{")]
  rows = [row for row in rows if row["chip"] == chip]
  assert len(rows) == len(list(aot.shapes()))
  assert not [row for row in rows if "error" in row]
  rows = [row for row in rows if "refused" not in row]
  assert len(rows) == served  # on GPU no float32, int8, scattered rows, other widths
  whole = [row for row in rows if row["width"] == 128]  # others are copied into whole lanes
  assert all(row["temp_bytes"] < row["argument_bytes"] * besides for row in whole)


@pytest.mark.full
@pytest.mark.parametrize("chip", topology.GPUS)
def test_no_register_is_spilled(chip):
  spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said(chip))
  assert spilled
  assert set(spilled) == {("0", "0")}


@pytest.mark.full
def test_the_loop_of_many_rows_compiles_for_a_mesh_without_a_copy_of_the_cache(tmp_path):
  """Above eight rows a device the cache is written by a loop, in which XLA for TPUs has faults."""
  if (reason := topology.absent(topology.TPUS["v5e"])) is not None:
    pytest.skip(reason)
  script = pathlib.Path(__file__).parents[2] / "benchmarks" / "compile" / "sharded_loop.py"
  shape = {"topologies": "v5e:2x2", "layers": 1, "batch": 16, "capacity": 1024, "drafted": 3}
  ran = subprocess.run(
    [sys.executable, script, "--out", tmp_path / "out", *(f"--{k}={v}" for k, v in shape.items())],
    env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  (cell,) = json.loads((tmp_path / "out" / "summary.json").read_text())["topologies"]
  assert cell["cache_copies"] == 0
