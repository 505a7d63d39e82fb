"""What a figure depends on besides the code: commit, versions, machine."""

import os
import pathlib
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata

import jax

import specjax

_PACKAGES = ("specjax", "jax", "jaxlib", "flax", "numpy")


def _git(*arguments: str) -> str | None:
  command = ["git", "-C", str(pathlib.Path(specjax.__file__).parent), *arguments]
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def commit() -> str | None:
  """The package's git commit, "+changes" added where the tree differs; None if not a checkout."""
  # An installed package may lie inside somebody else's repository: that one's commit says nothing.
  if _git("ls-files", "--error-unmatch", "__init__.py") is None:
    return None
  head = _git("rev-parse", "HEAD")
  return head and head + ("+changes" if _git("status", "--porcelain") else "")


def _cpu() -> str:
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.exists() else []
  names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
  return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
  """CPU cores this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(packages: Sequence[str] = ()) -> dict:
  """Commit, versions (of `packages` too) and machine, ready for JSON.

  The machine's load is that of the last minute; where it is above the run's own, others were
  computing too.
  """
  versions: dict[str, str | None] = {"python": platform.python_version()}
  for name in (*_PACKAGES, *packages):
    try:
      versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      versions[name] = None
  machine = {
    "system": platform.system(), "cpu": _cpu(), "cores": cores(),
    "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    "device": jax.devices()[0].device_kind, "backend": jax.default_backend(),
  }  # fmt: skip
  return {"commit": commit(), "versions": versions, "machine": machine}
