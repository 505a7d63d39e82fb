"""The kernels in C++ for CPUs: compiled at first use, by the machine's compiler for itself.

It is kept, so that only the first run waits seconds for it.
"""

import ctypes
import functools
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile

import jax
import jaxlib

from specjax import fingerprint

_HERE = pathlib.Path(__file__).parent
SOURCES = [
  _HERE / "skinny" / "skinny.cc",
  _HERE / "tree_attention" / "attention.cc",
  _HERE / "norm" / "norm.cc",
]
_TEXTS = [x.read_text() for x in (*SOURCES, _HERE / "cpu.h", _HERE / "skinny" / "rounded.h")]
# Programs name their kernels so: those that were compiled for another source do not run.
_KINDS = "product", "group_product", "rounded_product", "tree_attention", "pages", "unit_rows"
FLOATS, GROUPS, ROUNDED, ATTENTION, PAGES, UNIT = (
  f"specjax_{kind}_{fingerprint.digest(_TEXTS)}" for kind in _KINDS
)
_COMPILERS = ("g++", "clang++", "c++")
_OPTIONS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-w")


def compiler() -> list[str]:
  """The command of a C++ compiler: $CXX, or the first there is; OSError where there is none."""
  named = shlex.split(os.environ.get("CXX", ""))
  found = next((x for x in named[:1] or _COMPILERS if shutil.which(x)), None)
  if found is None:
    raise OSError(f"no C++ compiler is found ({', '.join(named[:1] or ['$CXX', *_COMPILERS])})")
  return [found, *named[1:]]


def _run(command: list[str]) -> str:
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    said = done.stderr.strip().splitlines() or [f"it exits with {done.returncode}"]
    raise OSError(f"{command[0]} fails: {said[0]}")
  return done.stdout


def library() -> pathlib.Path:
  """The library's file. OSError where it can neither be found nor made, as the message says.

  Its name is a hash of the source, of jaxlib, and of the compiler's own macros, which say its
  version and the processor. Two processes may make it at once.
  """
  arm = platform.machine() in ("arm64", "aarch64")
  command = [*compiler(), "-mcpu=native" if arm else "-march=native"]
  macros = _run([*command, "-dM", "-E", "-x", "c++", os.devnull])
  key = fingerprint.digest([*_TEXTS, jaxlib.__version__, *command, *_OPTIONS, macros])
  folder = fingerprint.cache_dir() / "kernels"
  path = folder / f"kernels-{key}.so"
  if not path.exists():
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
      made = pathlib.Path(own) / path.name
      include = f"-I{jax.ffi.include_dir()}"
      _run([*command, *_OPTIONS, include, *map(str, SOURCES), "-o", str(made)])
      os.replace(made, path)
  return path


@functools.cache
def available() -> bool:
  """Whether programs may name these kernels, which this registers; if not it says why."""
  try:
    kernels = ctypes.CDLL(str(library()))
  except OSError as error:
    print(
      f"{error}: products, norms and attention are left to XLA, which takes longer.",
      file=sys.stderr,
    )
    return False
  for target, kernel in (
    (FLOATS, kernels.FloatProduct),
    (GROUPS, kernels.GroupProduct),
    (ROUNDED, kernels.RoundedProduct),
    (ATTENTION, kernels.TreeAttention),
    (PAGES, kernels.PagedAttention),
    (UNIT, kernels.UnitRows),
  ):
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(kernel), platform="cpu")
  return True
