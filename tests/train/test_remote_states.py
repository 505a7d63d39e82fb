"""States from another process: those of the run itself, in order and never too far ahead."""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed
from sentences import says

import specjax
from specjax.data.packing import pack
from specjax.heads.eagle3 import Eagle3Config
from specjax.train import heads, states
from specjax.train.recipe import features, remote_states
from specjax.train.recipe.draft_positions import PositionSource
from specjax.train.recipe.remote_states import Remote, RemoteSource

STEPS = 6


@pytest.fixture(scope="module")
def model(lm_run):
  return specjax.load(f"{lm_run.out}/model", jnp.bfloat16)


@contextlib.contextmanager
def giving(model, port: int = 0, kind=states.States):
  """A server in a thread of this process, and its address."""
  with kind(("127.0.0.1", port), model) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield server, "{}:{}".format(*server.server_address)
    finally:
      server.shutdown()
      thread.join()


class Counting(states.States):
  """Counts the batches that it has read."""

  count = 0

  def read(self, *arguments):
    found = super().read(*arguments)
    self.count += 1
    return found


def source_of(model, address: str) -> RemoteSource:
  rng = np.random.default_rng(0)
  rows = pack([(rng.integers(1, 270, n).tolist(), [True] * n) for n in range(5, 30)], 32)
  remote = Remote(address, model, (1, 0))
  return RemoteSource(rows, remote, 2, 4, 0)


def order(step: int) -> np.ndarray:
  return np.arange(step, step + 3)


def test_states_are_those_on_disk_and_come_with_their_rows(model, tmp_path):
  """bfloat16 is kept as it is; a batch is a function of its step from wherever a run goes on."""
  with giving(model) as (_, address):
    source = source_of(model, address)
    kept = features.compute(model, source.rows, (1, 0), tmp_path, 3)
    stored = PositionSource(source.rows, kept, 2, 4, 0)
    got = source.stepped(order, STEPS)
    pairs = [(got(i), stored.stepped(order, STEPS)(i)) for i in (2, 3, 4, 5)]
    pairs += [(source.judged(3), stored.judged(3))]
    pairs += zip(source.every(3), stored.every(3), strict=True)
  for ours, theirs in pairs:
    assert ours.examples.features.hidden.dtype == jnp.bfloat16
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_no_more_is_computed_than_may_be_asked_for_ahead(model):
  with giving(model, kind=Counting) as (server, address):
    batch = source_of(model, address).stepped(order, 40)
    for step in range(3):
      batch(step)
      end = time.monotonic() + 20
      most = step + 1 + remote_states.AHEAD
      while server.count < most and time.monotonic() < end:
        time.sleep(0.001)
      time.sleep(0.05)
      assert server.count == most


def stranger(answer: bytes):
  """The address of a server that says something else to whoever comes."""
  listening = socket.create_server(("127.0.0.1", 0))

  def say():
    link, _ = listening.accept()
    with listening, link:
      link.recv(8)
      link.sendall(answer)

  threading.Thread(target=say, daemon=True).start()
  return f"127.0.0.1:{listening.getsockname()[1]}"


def test_what_gives_other_states_is_one_sentence(model, tiny_heads, tmp_path):
  """Before a question is answered."""
  other = specjax.load(tiny_heads.model)
  loud = jax.tree.map(lambda x: 2 * x, model.params)
  wrong = {
    "no address": ("8100", model, (), "`states_from` must be HOST:PORT of `python -m"),
    "nobody": ("127.0.0.1:9", model, (), "must be a process that gives states: "),
    "HTTP": (stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n"), model, (),
             "must be a process that gives states: it speaks another protocol."),
  }  # fmt: skip
  with giving(model) as (_, address):
    wrong |= {
      "dtype": (address, other, (), "this run's target, got one with dtype='bfloat16' (now 'fl"),
      "weights": (address, changed(model, params=loud), (), "target, got one with weights='"),
      "config": (address, dataclasses.replace(model, config=changed(model.config, window=7)), (),
                 "got one with model.config.window=None (now 7)."),
      "layers": (address, model, (0, 9), "says: `layers` must be between 0 and 2, got 9."),
    }  # fmt: skip
    for name, (place, ours, layers, words) in wrong.items():
      with pytest.raises(ValueError) as refusal:
        Remote(place, ours, layers)
      assert says(str(refusal.value), words), name
      assert str(refusal.value).endswith(".") and "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match=r"target, got one with dtype='bfloat16' \(now 'float32'"):
      heads.main(changed(tiny_heads, out=str(tmp_path), states_from=address))
  for others, words in (
    ({"online": True}, "`online` must be left out with states_from='x', which keeps"),
    ({"layers": (0,)}, "`features` and `layers` must be left out with states_from='x'"),
  ):
    with pytest.raises(ValueError, match=words):
      heads.main(changed(tiny_heads, out=str(tmp_path), states_from="x", **others))
  assert not (tmp_path / "answers.jsonl").exists()


def process(name: str, port: int) -> tuple[subprocess.Popen, str]:
  """`python -m specjax.train.states`, and its address once it listens."""
  command = [sys.executable, "-m", "specjax.train.states", "--model", name, "--dtype", "bfloat16",
             "--port", str(port)]  # fmt: skip
  root = str(pathlib.Path(specjax.__file__).parents[1])
  started = subprocess.Popen(
    command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root}
  )
  return started, started.stdout.readline().split(" at ")[1].rstrip().rstrip(".")


@pytest.mark.slow
def test_a_head_trained_on_them_and_a_remote_that_is_killed(
  warm, tmp_path, monkeypatch, capsys, final_state
):
  """The run is, bit for bit, the one whose states lay on disk."""
  monkeypatch.setattr(remote_states, "WAITS", (0.25,) * 800)
  ours = changed(
    warm, answers=f"{warm.out}/answers.jsonl", dtype="bfloat16", steps=16, save_every=10,
    head=Eagle3Config(depth=2), noise=0.1,
  )  # fmt: skip
  stored, far = (changed(ours, out=str(tmp_path / name)) for name in ("stored", "far"))
  monkeypatch.setattr(features.compute, "__defaults__", (ours.training.batch,))  # the same program
  heads.main(stored)
  first, address = process(warm.model, 0)
  take, later = PositionSource.take, []

  def until(self, turns, batch):
    """Kills the remote when the eighth batch is asked for, and starts another."""
    later.append(None)
    if len(later) == 8:
      first.kill()
      first.communicate()
      threading.Thread(
        target=lambda: later.append(process(warm.model, int(address.split(":")[1]))[0])
      ).start()
    return take(self, turns, batch)

  monkeypatch.setattr(PositionSource, "take", until)
  heads.main(changed(far, states_from=address))
  again = next(x for x in later if x is not None)
  again.kill()
  again.communicate()
  said = capsys.readouterr().err
  assert f"{address} gives no states (" in said and f"{address} gives states again." in said
  assert not (tmp_path / "far/features").exists()
  one, two = (final_state(x.out) for x in (stored, far))
  jax.tree.map(np.testing.assert_array_equal, one, two)
  lines = [
    [json.loads(x) for x in pathlib.Path(c.out, "metrics.jsonl").read_text().splitlines()]
    for c in (stored, far)
  ]
  assert [x["loss"] for x in lines[0]] == [x["loss"] for x in lines[1]]
  assert max(x["waited"] for x in lines[1]) > 0.1  # while nobody gave any
  assert json.loads(pathlib.Path(far.out, "report.json").read_text())["waited"] > 0
  with pytest.raises(ValueError, match="holds a run with states_from=True"):
    heads.main(far)
