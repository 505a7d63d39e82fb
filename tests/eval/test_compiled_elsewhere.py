"""A training's step and a denoiser's loop through the compiler of a chip that is not here."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from specjax.kernels import topology

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "compile"


def report(script: str, out: pathlib.Path, *options: str) -> list[dict]:
  """The cells that the script writes."""
  reason = topology.absent("h100:4")
  if reason is not None:
    pytest.skip(reason)
  ran = subprocess.run(
    [sys.executable, FOLDER / script, *options, "--out", str(out)],
    env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
  )  # fmt: skip
  assert ran.returncode == 0, ran.stderr
  [cells] = (x for x in json.loads((out / "summary.json").read_text()).values()
             if isinstance(x, list))  # fmt: skip
  return cells


@pytest.mark.full
def test_the_step_of_a_training_spreads_the_target_and_the_heads_moments(tmp_path):
  options = "--sizes small --batch 4 --length 64 --points 16 --draft-vocab 256 --layers 2"
  one, two, four = (
    report("training_step.py", tmp_path / name, "--topologies", f"h100:{chips}", "--data", data,
           *options.split())[0]
    for name, chips, data in (("one", 1, "1"), ("two", 4, "2"), ("four", 4, "4"))
  )  # fmt: skip
  assert one["collectives"] == {}
  assert all(cell["collectives"]["all-reduce"] > 0 for cell in (two, four))
  for cell in two, four:
    assert cell["argument_bytes"] < one["argument_bytes"] / 1.5
    # Weights are gathered once and gradients summed; no activation goes from device to device.
    assert cell["collectives"].keys() <= {"all-reduce", "all-gather", "reduce-scatter"}
    assert cell["collectives"]["all-gather"] < 10


@pytest.mark.full
@pytest.mark.parametrize(("model", "cache"), [("llada-8b", "dual"), ("sdar-8b", "committed")])
def test_a_denoisers_loop_copies_no_cache(tmp_path, model, cache):
  options = ["--topologies", "h100:1", "--layers", "1", "--batch", "2", "--canvas", "96"]
  [cell] = report("denoising_loop.py", tmp_path, "--model", model, "--caches", cache, *options)
  assert cell["cache_bytes"] > 0
  assert cell["cache_copies"] == 0
