"""Where a run's metrics go besides metrics.jsonl, by `--log-to`: TensorBoard, W&B or Trackio.

W&B and Trackio have the run in their project specjax, with its options, under the name of its
directory and a digest of where that is: a run that is continued is the same one there, too. What
they send and where is set by their own variables, such as WANDB_MODE=offline.
"""

import importlib
import importlib.util
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol

from specjax import checks, fingerprint

PROJECT = "specjax"
# The package of each, and how it is installed.
_PACKAGES = {
  "tensorboard": ("tensorboardX", "'specjax[tensorboard]'"),
  "wandb": ("wandb", "wandb"),
  "trackio": ("trackio", "trackio"),
}


class Tracker(Protocol):
  """What takes the metrics of each step."""

  def log(self, values: Mapping[str, float], step: int) -> None: ...
  def close(self) -> None: ...


def check(name: str | None) -> None:
  """Raises ValueError where the package of a tracker is not installed."""
  if name is not None:
    package, install = _PACKAGES[name]
    if importlib.util.find_spec(package) is None:
      raise ValueError(f"log_to={name} needs {package}: pip install {install}.")


def opened(name: str, directory: pathlib.Path, first: int) -> Tracker:
  """The tracker of a run whose next step is `first`."""
  check(name)
  return _Events(directory, first) if name == "tensorboard" else _Service(name, directory)


class _Events:
  """Events in `tensorboard/`, which `tensorboard --logdir` shows; those of later steps go."""

  def __init__(self, directory: pathlib.Path, first: int):
    from tensorboardX import SummaryWriter  # an extra

    self._board = SummaryWriter(str(directory / "tensorboard"), purge_step=first or None)

  def log(self, values: Mapping[str, float], step: int) -> None:
    for name, x in values.items():
      self._board.add_scalar(name, x, step)

  def close(self) -> None:
    self._board.close()


class _Service:
  """A package with the interface of W&B's; a step that it has already stays as it is."""

  def __init__(self, name: str, directory: pathlib.Path):
    self._module: Any = importlib.import_module(_PACKAGES[name][0])
    where = fingerprint.digest([str(directory.resolve())])
    options = directory / "run.json"
    own = {"id": where, "dir": str(directory)} if name == "wandb" else {}
    self._module.init(
      project=PROJECT,
      name=f"{directory.resolve().name}-{where[:6]}",
      config=checks.read_json(options) if options.exists() else {},
      resume="allow",
      **own,
    )

  def log(self, values: Mapping[str, float], step: int) -> None:
    self._module.log(dict(values), step=step)

  def close(self) -> None:
    self._module.finish()
