"""Real processes that train together: the weights and losses of one, and checkpoints that move."""

import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy
from options import changed, words

from specjax import distributed
from specjax.heads.eagle import EagleConfig
from specjax.heads.eagle3 import Eagle3Config
from specjax.heads.medusa import MedusaConfig
from specjax.train import heads
from specjax.train.recipe.run import count_lines

STEPS, SAVED = 20, 10
PATIENCE = 500  # seconds


def free_port() -> int:
  with socket.socket() as here:
    here.bind(("localhost", 0))
    return here.getsockname()[1]


def start(config: heads.Config, count: int) -> list[subprocess.Popen]:
  """The command of `config` in `count` processes, each with one device."""
  config = changed(config, devices=0)  # all there are
  command = [sys.executable, "-m", "specjax.train.heads", *words(config)]
  port = free_port()
  several = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(count)}
  environments = (
    os.environ | (several | {"JAX_PROCESS_ID": str(index)} if count > 1 else {})
    for index in range(count)
  )
  return [
    subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for env in environments
  ]


def train(config: heads.Config, count: int) -> list[str]:
  """What each process printed."""
  ended = [(p.communicate(timeout=PATIENCE), p.returncode) for p in start(config, count)]
  for (_, error), status in ended:
    assert status == 0, error[-2000:]
  return [printed for (printed, _), _ in ended]


def losses(out: str) -> list[float]:
  return [
    json.loads(line)["loss"] for line in pathlib.Path(out, "metrics.jsonl").read_text().splitlines()
  ]


def weights(out: str) -> dict[str, np.ndarray]:
  (file,) = pathlib.Path(out, "model").glob("*.safetensors")
  return safetensors.numpy.load_file(file)


def agree(out: str, alone: str) -> None:
  np.testing.assert_allclose(losses(out), losses(alone), rtol=1e-4)
  own, other = weights(out), weights(alone)
  assert own.keys() == other.keys()
  for name, x in own.items():
    np.testing.assert_allclose(x, other[name], atol=2e-3, err_msg=name)


@pytest.fixture(scope="module")
def alone(tiny_heads, tmp_path_factory):
  """The configuration of a run in one process."""
  out = tmp_path_factory.mktemp("alone") / "run"
  config = changed(tiny_heads, out=str(out), steps=STEPS, save_every=SAVED)
  heads.main(config)
  return config


@pytest.mark.slow
@pytest.mark.full(but=["2"])
@pytest.mark.parametrize(("count", "fsdp"), [(2, False), (4, True)], ids=["2", "4-fsdp"])
def test_several_processes_train_what_one_does(count, fsdp, alone, tmp_path):
  together = changed(alone, out=str(tmp_path / "run"), fsdp=fsdp)
  assert ["hit rates" in said for said in train(together, count)] == [True] + [False] * (count - 1)
  agree(together.out, alone.out)
  if count == 4:  # its checkpoint goes on in one process and in two
    for fewer in (1, 2):
      moved = tmp_path / f"on-{fewer}"
      shutil.copytree(together.out, moved)
      shutil.rmtree(moved / "checkpoints" / str(STEPS))
      shutil.rmtree(moved / "model")
      train(changed(together, out=str(moved)), fewer)
      assert losses(str(moved))[:SAVED] == losses(together.out)[:SAVED]
      agree(str(moved), alone.out)


@pytest.mark.full
@pytest.mark.parametrize(
  "head", [MedusaConfig(depth=3), EagleConfig(depth=2)], ids=["medusa", "eagle"]
)
def test_a_mesh_trains_what_one_device_does(head, alone, tmp_path):
  """The target is spread too: for its answers, its states and the head's own loss."""
  runs = [
    dataclasses.replace(changed(alone, out=str(tmp_path / name), mesh=mesh), head=head)
    for name, mesh in (("one", None), ("four", "data=2,model=2"))
  ]
  for config in runs:
    heads.main(config)
  agree(runs[1].out, runs[0].out)
  files = [pathlib.Path(config.out, "answers.jsonl").read_text() for config in runs]
  assert files[0] == files[1]


@pytest.mark.slow
def test_devices_that_share_the_tokens_of_rows_train_what_one_does(tiny_heads, tmp_path):
  """61 tokens and 15 positions of a row, which four devices do not divide, and a window."""
  alone = changed(tiny_heads, out=str(tmp_path / "one"), steps=6, save_every=6)
  alone = changed(alone, head=Eagle3Config(depth=2, window=8), length=61, points=15)
  heads.main(alone)
  answers = str(tmp_path / "one" / "answers.jsonl")
  together = changed(alone, out=str(tmp_path / "four"), answers=answers, mesh="data=2,sequence=4")
  heads.main(together)
  agree(together.out, alone.out)


@pytest.mark.full
def test_processes_share_a_mesh(alone, tmp_path):
  together = changed(alone, out=str(tmp_path / "run"), mesh="data=2,model=2")
  assert ["hit rates" in said for said in train(together, 4)] == [True, False, False, False]
  agree(together.out, alone.out)


@pytest.mark.full
def test_two_processes_that_were_killed_go_on_bit_for_bit(alone, tmp_path):
  config = changed(alone, save_every=4)
  whole, killed = (changed(config, out=str(tmp_path / name)) for name in ("whole", "killed"))
  train(whole, 2)
  log, rng = pathlib.Path(killed.out, "metrics.jsonl"), np.random.default_rng(0)
  for last in sorted(rng.integers(1, STEPS, 3)):
    running = start(killed, 2)
    end = time.monotonic() + PATIENCE
    while count_lines(log) < last and time.monotonic() < end:
      time.sleep(0.001)
    for process in running:
      process.kill()
      process.communicate()
  train(killed, 2)
  assert losses(whole.out) == losses(killed.out)
  assert weights(whole.out).keys() == weights(killed.out).keys()
  for name, x in weights(whole.out).items():
    np.testing.assert_array_equal(x, weights(killed.out)[name])


def test_a_mesh_that_does_not_divide_the_batch_is_refused(alone, tmp_path):
  with pytest.raises(
    ValueError,
    match=(r"`batch` must be a multiple of data=4 times parts=1 with mesh='data=4', got 6\."),
  ):
    heads.main(changed(alone, out=str(tmp_path), batch=6, mesh="data=4"))


@pytest.mark.parametrize(
  ("own", "words"),
  [
    (
      {"JAX_NUM_PROCESSES": "2"},
      r"`JAX_PROCESS_ID` must be an integer where JAX_COORDINATOR_ADDRESS is set, got ''\.",
    ),
    (
      {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
      r"`JAX_PROCESS_ID` must be between 0 and JAX_NUM_PROCESSES - 1, which is 1, got 2\.",
    ),
  ],
)
def test_processes_that_are_not_numbered_are_refused(own, words, monkeypatch):
  monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1")
  for name, value in own.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(ValueError, match=words):
    distributed.start()
