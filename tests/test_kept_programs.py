"""What a command has compiled, the next one finds."""

import os
import pathlib
import subprocess
import sys

import pytest
from cut import cut

from specjax.checkpoints import hf

COMMAND = ["generate", "--prompt", "a", "--max-new-tokens", "2", "--model"]


def kept(model: pathlib.Path, folder: pathlib.Path, **more: str) -> set[pathlib.Path]:
  """Runs a command whose cache directory is `folder`; the programs that are then in it."""
  own = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
  own |= {"XDG_CACHE_HOME": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} | more
  own["JAX_NUM_CPU_DEVICES"] = "2"  # for which no kernels in C++ are compiled
  subprocess.run([sys.executable, "-m", "specjax.cli", *COMMAND, str(model)], env=own, check=True)
  return set(folder.rglob("*-cache"))


@pytest.mark.slow
def test_the_second_run_compiles_nothing_and_a_users_folder_comes_first(tmp_path):
  model = tmp_path / "model"
  hf.save(model, cut().config, cut().params, cut().tokenizer)
  programs = kept(model, tmp_path / "home")
  assert {p.relative_to(tmp_path / "home").parts[:2] for p in programs} == {("specjax", "compiled")}
  assert any(p.name.startswith("jit_advance") for p in programs)
  assert kept(model, tmp_path / "home") == programs
  assert not kept(model, tmp_path / "other", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
  assert list((tmp_path / "mine").glob("jit_advance*-cache"))
