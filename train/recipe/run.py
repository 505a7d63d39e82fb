"""The directory of a run, which may be killed at any moment and started again."""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from specjax import checks, distributed, fingerprint, switches
from specjax.data import resume
from specjax.data.resume import count_lines as count_lines
from specjax.data.resume import keep_lines as keep_lines
from specjax.data.resume import write_json
from specjax.models import sharding
from specjax.train.recipe import options, trackers
from specjax.train.recipe.config import check

# Options that may differ when a run continues: where texts and states lie does not change them.
_FREE = (
  "out", "data", "answers", "answers_from", "features", "save_every", "devices", "fsdp", "mesh",
  "log_to", "profile",
)  # fmt: skip


def on_mesh(
  main: Callable[..., None], axes: Mapping[str, str] = sharding.AXES
) -> Callable[..., None]:
  """A trainer's `main(config, ..)` under the mesh that its options name, which may have `axes`."""

  @switches.hold
  @functools.wraps(main)
  def under(config: Any, *others: Any, **more: Any) -> None:
    text = config.training.mesh
    mesh = None if text is None else sharding.named_mesh(text, axes)
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
      main(config, *others, **more)

  return under


def begin(config: Any) -> pathlib.Path:
  """Checks the numbers among the options, and those of `training`, and makes the run's directory.

  Raises:
    ValueError: a number is not accepted, a package is missing, or nothing can be written to the
      directory.
  """
  check(config)
  if hasattr(config, "training"):
    config.training.shardings()
    trackers.check(config.training.log_to)
  path = pathlib.Path(config.out)
  try:
    with distributed.in_turn():
      path.mkdir(parents=True, exist_ok=True)
      (path / ".writable").touch()
      (path / ".writable").unlink(missing_ok=True)  # another process may have been quicker
  except OSError as error:
    raise ValueError(f"out={config.out!r}: nothing can be written ({error.strerror}).") from None
  return path


def claim(
  directory: pathlib.Path,
  config: Any,
  content: Any,
  key: fingerprint.Key | None = None,
  **replaced: Any,
) -> None:
  """Ties a directory to one run, so that starting it again cannot mix two.

  The options `config | replaced` are kept in run.json with a digest of what is trained on, a tuple
  of arrays or a value for JSON, and the `key` of the models that take part; and the options as they
  were given in options.yaml, see `recipe.options`, which is printed. A directory without
  run.json is accepted, and so are more steps than it had: the run goes on, by the learning rates of
  a run of so many.

  Raises:
    ValueError: the directory holds a run with other options or other data.
  """
  here = dataclasses.asdict(config) | replaced
  for shared in ("training", "network"):
    here |= here.pop(shared, {})
  parts = content if isinstance(content, tuple) else [json.dumps(content)]
  here |= {"data_digest": fingerprint.digest(parts), **(key or {})}
  with distributed.in_turn():
    before = checks.read_json(file) if (file := directory / "run.json").exists() else {}
    more = isinstance(steps := before.get("steps"), int) and steps < here.get("steps", 0)
    resume.claim(directory, here, (*_FREE, "steps") if more else _FREE)
    if distributed.first():
      options.keep(directory, config)


def report(directory: pathlib.Path, figures: dict[str, Any]) -> None:
  """Writes report.json and prints a line per figure, in the first process."""
  if not distributed.first():
    return
  write_json(directory / "report.json", figures)
  for name, value in figures.items():
    nested = isinstance(value, list) and value and isinstance(value[0], list)
    for i, row in enumerate(value if nested else [value], 1):
      print(f"{name.replace('_', ' ')}{f' {i}' if nested else ''}: {_shown(row)}")


def _shown(figure: Any) -> str:
  """A figure of a report in one line: a dict as `4: 1.5, 8: 1.8`, a list of rates in columns."""
  if isinstance(figure, dict):
    return ", ".join(f"{key}: {value}" for key, value in figure.items())
  if isinstance(figure, list):
    return " ".join(f"{x:6.4f}" if isinstance(x, float) else str(x) for x in figure)
  return str(figure)
