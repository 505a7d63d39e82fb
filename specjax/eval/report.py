"""The directory that a measurement writes.

summary.json holds the figures with their configuration and environment, table.md the most
important of them, results.jsonl what was decoded; pictures lie beside them.
"""

import dataclasses
import json
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax

import specjax
from specjax import checks
from specjax.eval.bar import Bar

if TYPE_CHECKING:
  from matplotlib.figure import Figure

_PACKAGES = ("specjax", "jax", "jaxlib", "flax", "numpy")


def check(config: Any, *names: str) -> None:
  """Raises ValueError where an option of these names, or one number of a tuple, is below 1."""
  for name in names:
    value = getattr(config, name)
    for each in value if isinstance(value, tuple) else (value,):
      checks.whole(name, each, 1)


def progress(items: Sequence[Any], description: str, done: int = 0) -> Iterable[Any]:
  """The items after the first `done`, with a bar on stderr that says how many are done."""
  with Bar(description, len(items), done, stderr=True) as bar:
    for i in range(done, len(items)):
      yield items[i]
      bar.update(i + 1)


def directory(out: str | pathlib.Path) -> pathlib.Path:
  """Makes a directory, before anything is measured, so that no result is lost."""
  path = checks.directory("out", out)
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:  # a name that is too long, or a file system that is full
    checks.refuse("out", str(out), f"a directory that can be made ({error.strerror})")
  return path


def summary(config: Any, found: Mapping[str, Any], packages: Sequence[str] = ()) -> dict[str, Any]:
  """Figures with the configuration, the commit, the versions and the machine, ready for JSON."""
  return {"config": dataclasses.asdict(config), **environment(packages), **found}


def save(
  out: pathlib.Path,
  summary: Mapping[str, Any],
  text: str,
  plots: "Mapping[str, Figure] | None" = None,
  records: Iterable[Mapping[str, Any]] | None = None,
) -> None:
  """Writes summary.json, `text` as table.md, the plots by name, and records as results.jsonl."""
  (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
  (out / "table.md").write_text(text + "\n")
  if records is not None:
    with (out / "results.jsonl").open("w") as file:
      file.writelines(json.dumps(record) + "\n" for record in records)
  for name, figure in (plots or {}).items():
    figure.savefig(out / f"{name}.png")


def publish(
  config: Any,
  found: Mapping[str, Any],
  text: str,
  plots: "Mapping[str, Figure] | None" = None,
  packages: Sequence[str] = (),
) -> None:
  """Saves to `config.out`, and prints the table and the names of the files."""
  save(directory(config.out), summary(config, found, packages), text, plots)
  print(text, contents(config.out), sep="\n")


def contents(out: str | pathlib.Path) -> str:
  """A line that names the files of a directory."""
  return f"{out}: {', '.join(sorted(p.name for p in pathlib.Path(out).iterdir()))}"


def decoding(summary: Mapping[str, Any]) -> str:
  """What was decoded and how."""
  config = summary["config"]
  temperature = config.get("temperature", 0)
  how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
  model = pathlib.Path(summary["model"]).name
  return f"{model}, {summary['prompts']} prompts, {how}, batch {config['batch']}"


def machine(summary: Mapping[str, Any]) -> str:
  """Where a measurement ran."""
  m = summary["machine"]
  cores = f"{m['cores']} core" + "s" * (m["cores"] > 1)
  return f"{m['cpu'] if m['backend'] == 'cpu' else m['device']}, {cores}"


def caption(summary: Mapping[str, Any]) -> str:
  """The caption of a table: what was decoded, how and where."""
  c = summary["config"]
  source = pathlib.Path(c["prompts"]).name if c["prompts"] else "our own questions"
  return (
    f"{decoding(summary)}; {summary['parameters'] / 1e6:.1f}M parameters, prompts of {source}, up "
    f"to {c['max_new_tokens']} new tokens, median of {c['repeats']}; {machine(summary)}; jax "
    f"{summary['versions']['jax']}."
  )


def _git(*arguments: str) -> str | None:
  command = ["git", "-C", str(pathlib.Path(specjax.__file__).parent), *arguments]
  try:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def commit() -> str | None:
  """The package's git commit, with "+changes" where files differ; None where it is no checkout."""
  # An installed package may lie inside another repository, whose commit says nothing.
  if _git("ls-files", "--error-unmatch", "__init__.py") is None:
    return None
  head = _git("rev-parse", "HEAD")
  return head and head + ("+changes" if _git("status", "--porcelain") else "")


def _cpu() -> str:
  info = pathlib.Path("/proc/cpuinfo")
  named = re.search(r"^model name\s*: *(.*)", info.read_text() if info.exists() else "", re.M)
  return named[1].strip() if named else platform.processor() or platform.machine()


def cores() -> int:
  """The number of CPU cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(packages: Sequence[str] = ()) -> dict:
  """Commit, versions (of `packages` too) and machine with its load of the last minute, for JSON."""
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
