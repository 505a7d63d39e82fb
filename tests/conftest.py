"""Every check that jax and pytest have is on; eight devices are faked on the CPU.

The tests come in three tiers. `pytest.mark.slow` marks what takes seconds, mostly since it trains
or decodes from end to end; `pytest.mark.full` marks cells of a kind of which others stay. The quick
tier is what neither marks. Without --full, programs are compiled without optimisation.
"""

import collections
import ctypes
import fnmatch
import gc
import os
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # or libtpu, where it is installed, looks for chips
os.environ["XDG_CACHE_HOME"] = str(ROOT / ".jax_cache")  # a user's block sizes change bits

import drawn_files  # noqa: E402
import jax  # noqa: E402  the cache directory is read on import
import pytest  # noqa: E402

gc.set_threshold(100_000, 50, 100)  # tracing makes many objects, and few of them are garbage
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


TIERS = pytest.StashKey[str]()
FAST_COMPILE = ["--xla_backend_optimization_level=0"]
if jax.__version_info__ < (0, 11):  # later compilers have one kind of emitter
  FAST_COMPILE += [
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
  ]


def pytest_addoption(parser):
  parser.addoption(
    "--full", action="store_true", help="run every cell, compiled as a user's program is"
  )
  parser.addoption("--slow", action="store_true", help="run the quick and the slow tier")
  parser.addoption(
    "--rest", action="store_true", help="run what the quick and slow tiers leave out"
  )


def pytest_configure(config):
  config.addinivalue_line("filterwarnings", "error")
  config.addinivalue_line(
    "markers",
    "full(but=()): the test needs --full, except for cells whose id matches a pattern in `but`",
  )
  config.addinivalue_line("markers", "slow: the test takes seconds and needs --slow or --full")
  if not hasattr(config, "workerinput"):
    drawn_files.write_all()
  if not config.option.full:  # compiling is four fifths of the time, and a third of that will do
    flags = [os.environ.get("XLA_FLAGS", ""), *FAST_COMPILE]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()


def tier_of(item: pytest.Item) -> str:
  """Its name: quick, slow or full; of two marks `full`, the one nearest to the test decides."""
  mark = item.get_closest_marker("full")
  cell = item.callspec.id if hasattr(item, "callspec") else ""
  kept = () if mark is None else mark.kwargs.get("but", ())
  if mark is not None and not any(fnmatch.fnmatchcase(cell, pattern) for pattern in kept):
    return "full"
  return "quick" if item.get_closest_marker("slow") is None else "slow"


def check_patterns(items):
  """Raises if a pattern of a mark matches no cell: its tests would leave the quick tier unseen."""
  cells = collections.defaultdict(set)
  for item in items:
    for mark in item.iter_markers("full"):
      for pattern in mark.kwargs.get("but", ()):
        cells[item.parent.nodeid, item.originalname, pattern].add(item.callspec.id)
  for (parent, name, pattern), ids in cells.items():
    if not fnmatch.filter(ids, pattern):
      raise pytest.UsageError(f"{parent}::{name} has no cell {pattern!r}, but {sorted(ids)}")


def pytest_collection_modifyitems(config, items):
  """Chooses the tiers that the options name, unless cells are named one by one."""
  if any("::" in name for name in config.args):
    return
  check_patterns(items)
  count = collections.Counter(map(tier_of, items))
  tiers = ", ".join(f"{count[name]} {name}" for name in ("quick", "slow", "full"))
  getattr(config, "workeroutput", {})["tiers"] = config.stash[TIERS] = f"of {tiers} cells"
  option = config.option
  wanted = {"quick", "slow"} if option.slow else {"quick"}
  wanted = {"full"} if option.rest else {"quick", "slow", "full"} if option.full else wanted
  config.hook.pytest_deselected(items=[item for item in items if tier_of(item) not in wanted])
  items[:] = [item for item in items if tier_of(item) in wanted]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  node.config.stash[TIERS] = getattr(node, "workeroutput", {}).get("tiers", "")


def pytest_terminal_summary(terminalreporter, config):
  terminalreporter.write_line(config.stash.get(TIERS, ""))


MAPS, STATM = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/self/statm")
MOST = {"maps": 30_000, "bytes": 1.8e9}


def resident() -> int:
  """Bytes of this process that lie in memory."""
  return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def _executables_end_in_time():
  """Compiled programs are let go before they fill the memory.

  A process may also map no more than 65530 pieces of memory, and a compiled loop takes hundreds of
  them: more than that is no error but a crash of the process.
  """
  yield
  if not STATM.exists():
    return
  if resident() > MOST["bytes"] or MAPS.read_bytes().count(b"\n") > MOST["maps"]:
    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
    MOST["bytes"] = max(MOST["bytes"], resident() + 0.5e9)  # what stays, others hold


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
  """Four devices: rows over two, heads and columns over two."""
  auto = (jax.sharding.AxisType.Auto,) * 2
  return jax.make_mesh((2, 2), ("data", "model"), auto, devices=jax.devices()[:4])


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
  """The data that lie beside the checkout."""
  path = ROOT.parent / "shared" / "data"
  if not path.is_dir():
    pytest.skip(f"{path} is absent")
  return path


@pytest.fixture
def switch():
  """Sets switches of JAX, by name, for the rest of a test."""
  before = {}

  def put(values) -> None:
    for name, value in values.items():
      before.setdefault(name, jax.config.values[name])
      jax.config.update(name, value)

  yield put
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.fixture(scope="session")
def list_denoiser(tmp_path_factory) -> str:
  """Directory of a masked diffusion model with random weights that reads questions about lists."""
  import jax.numpy as jnp

  from specjax.checkpoints import hf
  from specjax.data import lists
  from specjax.data.chat import TEMPLATES
  from specjax.data.tokenizer import END, MASK, train_words
  from specjax.models.config import Config
  from specjax.models.transformer import Transformer

  tokenizer = train_words(f"{r['question']} {r['answer']}" for r in lists.records(0, 600))
  tokenizer.inner.add_special_tokens([END, MASK])
  config = Config(
    vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, kv_heads=1, head_dim=8,
    mlp_width=24, max_length=96, causal=False,
  )  # fmt: skip
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(config).init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  params = jax.tree.map(lambda x: x * 20 if x.ndim > 1 else x, params)
  path = tmp_path_factory.mktemp("denoiser")
  hf.save(path, config, params, tokenizer, template=TEMPLATES["plain"], mask=tokenizer.id(MASK))
  return str(path)
