"""What a run says of its steps: a line of JSON for each, and what a tracker shows if asked."""

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from jax import Array

from specjax import distributed
from specjax.train.recipe import trackers
from specjax.train.recipe.run import keep_lines


class Log:
  """Metrics of the steps from `first` on, written by the first process of several.

  `metrics.jsonl` has one line per step, with the seconds that it took and those in which the
  devices `waited` for its batch with nothing else to do. Lines from `first` on, which
  a killed run left, belong to steps that run again and are dropped. For `log_to` see `trackers`.
  """

  def __init__(self, directory: pathlib.Path, first: int, log_to: str | None = None):
    self.directory, self.begin = directory, time.perf_counter()
    self.files, self.lines = contextlib.ExitStack(), None
    self.tracker: trackers.Tracker | None = None
    if distributed.first():
      path = directory / "metrics.jsonl"
      keep_lines(path, first)
      self.lines = self.files.enter_context(path.open("a"))
      if log_to is not None:
        self.tracker = trackers.opened(log_to, directory, first)
        self.files.callback(self.tracker.close)

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self.files.close()

  def write(self, step: int, metrics: Mapping[str, Array], waited: float) -> dict[str, float]:
    """Writes the metrics of a step down and returns them as numbers.

    Raises:
      FloatingPointError: one of them is not finite.
    """
    values = {name: float(x) for name, x in metrics.items()}
    bad = [f"{name}={x}" for name, x in values.items() if not math.isfinite(x)]
    if bad:
      raise FloatingPointError(
        f"{', '.join(bad)} at step {step}; the last good checkpoint is in "
        f"{self.directory / 'checkpoints'}. Lower the learning rate or look at the data."
      )
    self.begin, seconds = (now := time.perf_counter()), now - self.begin
    values |= {"seconds": round(seconds, 4), "waited": round(waited, 4)}
    if self.lines is not None:
      self.lines.write(json.dumps({"step": step, **values}) + "\n")
      self.lines.flush()
    if self.tracker is not None:
      self.tracker.log(values, step)
    return values


def waited(directory: pathlib.Path) -> float:
  """The share of a run's time in which the devices waited for batches, but for its first step."""
  file = directory / "metrics.jsonl"  # of the first process
  lines = file.read_text().splitlines()[1:] if file.exists() else []
  steps = [json.loads(line) for line in lines]
  return sum(x["waited"] for x in steps) / max(sum(x["seconds"] for x in steps), 1e-9)
