"""The library behind the products: compiled at first use, by the machine's compiler for itself.

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

SOURCE = pathlib.Path(__file__).with_name("skinny.cc")
_TEXTS = [SOURCE.read_text(), SOURCE.with_name("rounded.h").read_text()]
# Programs name their products so: those that were compiled for another source do not run.
FLOATS, GROUPS, ROUNDED = (
  f"specjax_skinny_{kind}_{fingerprint.digest(_TEXTS)}" for kind in ("floats", "groups", "rounded")
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


def compiled() -> pathlib.Path:
  """The library's file. OSError where it can neither be found nor made, as the message says.

  Its name is a hash of the source, of jaxlib, and of the compiler's own macros, which say its
  version and the processor. Two processes may make it at once.
  """
  arm = platform.machine() in ("arm64", "aarch64")
  command = [*compiler(), "-mcpu=native" if arm else "-march=native"]
  macros = _run([*command, "-dM", "-E", "-x", "c++", os.devnull])
  key = fingerprint.digest([*_TEXTS, jaxlib.__version__, *command, *_OPTIONS, macros])
  folder = fingerprint.cache_dir() / "kernels"
  path = folder / f"skinny-{key}.so"
  if not path.exists():
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
      made = pathlib.Path(own) / path.name
      _run([*command, *_OPTIONS, f"-I{jax.ffi.include_dir()}", str(SOURCE), "-o", str(made)])
      os.replace(made, path)
  return path


@functools.cache
def available() -> bool:
  """Whether programs may name these products, which this registers; if not it says why."""
  try:
    library = ctypes.CDLL(str(compiled()))
  except OSError as error:
    print(f"{error}: products of a few rows are left to XLA, which takes longer.", file=sys.stderr)
    return False
  for target, product in (
    (FLOATS, library.FloatProduct),
    (GROUPS, library.GroupProduct),
    (ROUNDED, library.RoundedProduct),
  ):
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(product), platform="cpu")
  return True
