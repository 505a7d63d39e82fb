"""The notebooks run from top to bottom with small settings."""

import os
import pathlib

import pytest

from specjax.names import load

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# jupyter_client and zmq, not ours
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_notebook_runs(path, monkeypatch):
  nbformat = pytest.importorskip("nbformat")
  nbclient = pytest.importorskip("nbclient")
  for name in (load.DEFAULT_MODEL, f"{load.DEFAULT_MODEL}-medusa"):
    if not (load.ZOO / name / "config.json").is_file():
      pytest.skip(f"{name} is not in the zoo")
  monkeypatch.setenv("SPECJAX_QUICK", "1")
  monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
  notebook = nbformat.read(path, as_version=4)
  nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(
    env=os.environ, cwd=str(path.parent)
  )
