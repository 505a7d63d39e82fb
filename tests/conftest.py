"""Every check that jax and pytest have is on; eight devices are faked on the CPU."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))

import jax  # noqa: E402  the cache directory is read on import
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
  parser.addoption(
    "--thorough", action="store_true", help="every cell of the proofs, 3 tables each"
  )


def pytest_configure(config):
  config.addinivalue_line("filterwarnings", "error")


MAPS = pathlib.Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def _executables_end_in_time():
  """A process may map 65530 pieces of memory, and a compiled loop takes hundreds of them.

  More than that is no error but a crash of the process.
  """
  yield
  if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 15_000:
    jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
  """The data that lie beside the checkout."""
  path = ROOT.parent / "shared" / "data"
  if not path.is_dir():
    pytest.skip(f"{path} is absent")
  return path
