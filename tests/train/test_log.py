"""What a run writes of its steps: lines, what trackers show, a trace of the profiler."""

import dataclasses
import importlib.machinery
import json
import pathlib
import struct
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.train import heads
from specjax.train.recipe.config import Training
from specjax.train.recipe.fit import loop

STEPS = 9


@jax.jit
def step(state, x):
  state = state * 0.5 + x
  return state, {"loss": state, "gradient_norm": 1 / state}


def batch(i: int) -> np.ndarray:
  return np.float32(i + 1)


def run(directory: pathlib.Path, stop_at: int | None = None, **options) -> None:
  def until(i: int) -> np.ndarray:
    if i == stop_at:
      raise RuntimeError("power cut")
    return batch(i)

  loop(step, jnp.zeros(()), until, Training(steps=STEPS, save_every=4, **options), directory)


def events(directory: pathlib.Path) -> list:
  """The events of all files, read as records: length, checksum, bytes, checksum."""
  from tensorboardX.proto.event_pb2 import Event

  found = []
  for file in sorted((directory / "tensorboard").iterdir()):
    data, place = file.read_bytes(), 0
    while place < len(data):
      (size,) = struct.unpack_from("<Q", data, place)
      found.append(Event.FromString(data[place + 12 : place + 12 + size]))
      place += 16 + size
  return found


def test_events_have_the_numbers_of_the_lines_and_a_resumed_run_drops_what_it_repeats(tmp_path):
  with pytest.raises(RuntimeError, match="power cut"):
    run(tmp_path, stop_at=7, log_to="tensorboard")
  first = events(tmp_path)
  assert max(e.step for e in first) == 5
  run(tmp_path, log_to="tensorboard")

  lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [x.pop("step") for x in lines] == list(range(STEPS))
  all_events = events(tmp_path)
  # SessionLog.START at step 4, where the newest checkpoint is: a reader forgets what came after it.
  (restart,) = [e for e in all_events if e.HasField("session_log")]
  assert restart.step == 4 and restart.session_log.status == 1
  later = all_events[all_events.index(restart) :]
  kept = [e for e in first if e.step < 4] + later
  said = {(e.step, v.tag): v.simple_value for e in kept for v in e.summary.value}
  assert said == pytest.approx({(i, k): x for i, line in enumerate(lines) for k, x in line.items()})


@pytest.mark.parametrize("steps", [3, 100])
def test_a_profile_is_kept_of_as_many_steps_as_there_are(tmp_path, steps):
  run(tmp_path, profile=steps)
  traces = list((tmp_path / "profile").rglob("*.xplane.pb"))
  assert len(traces) == 1 and traces[0].stat().st_size > 0
  assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == STEPS


class Service(types.ModuleType):
  """A package with what W&B and Trackio document: init, log with a step, finish."""

  def __init__(self, name: str):
    super().__init__(name)
    self.__spec__ = importlib.machinery.ModuleSpec(name, None)
    self.runs = []

  def init(self, project, name=None, config=None, resume="never", **own):
    self.runs.append({"name": name, "of": (project, config, resume, own), "logged": {}})

  def log(self, metrics: dict, step: int | None = None):
    self.runs[-1]["logged"][step] = metrics

  def finish(self):
    self.runs[-1]["finished"] = True


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_has_the_numbers_of_the_lines_and_a_resumed_run_is_the_same_one(
  tmp_path, monkeypatch, name
):
  monkeypatch.setitem(sys.modules, name, service := Service(name))
  (tmp_path / "run.json").write_text('{"steps": 9}')
  with pytest.raises(RuntimeError, match="power cut"):
    run(tmp_path, stop_at=7, log_to=name)
  run(tmp_path, log_to=name)
  first, second = service.runs
  assert first["finished"] and second["finished"]
  assert (first["name"], first["of"]) == (second["name"], second["of"])
  project, config, resume, own = first["of"]
  assert (project, config, resume) == ("specjax", {"steps": 9}, "allow")
  assert set(own) == ({"id", "dir"} if name == "wandb" else set())
  lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert {x.pop("step"): x for x in lines[4:]} == second["logged"]
  assert sorted(first["logged"]) == list(range(6))


PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_tracker_without_its_package_is_refused_before_anything_is_computed(
  tmp_path, monkeypatch, name
):
  package = PACKAGES[name]
  monkeypatch.setitem(sys.modules, package, None)
  config = heads.Config("gsm8k-7m", "questions.jsonl", str(tmp_path / "run"))
  training = dataclasses.replace(config.training, log_to=name)
  with pytest.raises(ValueError, match=f"log_to={name} needs {package}: pip install"):
    heads.main(dataclasses.replace(config, training=training))
  assert not (tmp_path / "run").exists()
