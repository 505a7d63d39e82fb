"""Runs killed by the system and started again are, bit for bit, those that were left alone."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from options import changed, words

from specjax.train.recipe.run import count_lines

PATIENCE = 300  # seconds


def start(script: str, config, out: pathlib.Path) -> subprocess.Popen:
  """`python -m specjax.train.SCRIPT` with every setting on its command line."""
  config = changed(config, out=str(out))
  command = [sys.executable, "-m", f"specjax.train.{script}", *words(config)]
  env = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
  return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)


def finish(*arguments) -> str:
  with start(*arguments) as process:
    output = process.communicate(timeout=PATIENCE)[0].decode()
  assert process.returncode == 0, output
  return output


def kill(*arguments, file: str, lines: int, by=signal.SIGKILL, status=-signal.SIGKILL) -> str:
  """Kills a run as soon as a file of its directory has so many lines; what it said."""
  path = arguments[-1] / file
  end = time.monotonic() + PATIENCE
  with start(*arguments) as process:
    while count_lines(path) < lines and process.poll() is None and time.monotonic() < end:
      time.sleep(0.001)
    process.send_signal(by)
    output = process.communicate()[0].decode()
  assert process.returncode == status, output
  assert count_lines(path) >= lines, output
  return output


def assert_same_run(a: pathlib.Path, b: pathlib.Path, final_state) -> None:
  jax.tree.map(np.testing.assert_array_equal, final_state(a), final_state(b))
  metrics = []
  for directory in (a, b):
    records = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    metrics.append(
      [{k: v for k, v in r.items() if k not in ("seconds", "waited")} for r in records]
    )
  assert metrics[0] == metrics[1]
  weights = [next((d / "model").glob("*.safetensors")).read_bytes() for d in (a, b)]
  assert weights[0] == weights[1]


@pytest.mark.full
def test_language_model(tiny, tmp_path, final_state):
  config = changed(tiny, steps=40, save_every=10)
  output = finish("lm", config, tmp_path / "whole")
  assert "parameters" in output and "40/40" in output and "\x1b" not in output
  killed = tmp_path / "killed"
  kill("lm", config, killed, file="metrics.jsonl", lines=13)
  kill("lm", config, killed, file="metrics.jsonl", lines=20)  # the checkpoint is being written
  finish("lm", config, killed)
  assert_same_run(tmp_path / "whole", killed, final_state)
  asked, kept = tmp_path / "asked", changed(config, save_every=1000)
  for number, lines in ((signal.SIGTERM, 5), (signal.SIGINT, 15)):
    said = kill(
      "lm", kept, asked, file="metrics.jsonl", lines=lines, by=number, status=128 + number
    )
    step = int(re.search(r"stopped after step (\d+), which is saved", said)[1])
    assert lines <= step < 40
  assert "continues after step" in finish("lm", kept, asked)
  assert_same_run(tmp_path / "whole", asked, final_state)


@pytest.mark.full
def test_heads_and_the_sampled_answers_they_learn_from(tiny_heads, tmp_path, final_state):
  config = changed(tiny_heads, steps=40, save_every=10, temperature=0.8, noise=0.1, draft_vocab=100)
  finish("heads", config, tmp_path / "whole")
  killed = tmp_path / "killed"
  kill("heads", config, killed, file="answers.jsonl", lines=33)
  with (killed / "answers.jsonl").open("a") as sink:
    sink.write('{"prompt": [1, 2')  # as a kill in the middle of a write leaves it
  kill("heads", config, killed, file="metrics.jsonl", lines=13)
  finish("heads", config, killed)
  answers = [
    sorted((d / "answers.jsonl").read_text().splitlines()) for d in (tmp_path / "whole", killed)
  ]
  assert answers[0] == answers[1]
  assert_same_run(tmp_path / "whole", killed, final_state)


@pytest.mark.full
def test_a_model_and_its_head(tiny_joint, tmp_path, final_state):
  config = changed(tiny_joint, save_every=10)
  finish("joint", config, tmp_path / "whole")
  killed = tmp_path / "killed"
  kill("joint", config, killed, file="metrics.jsonl", lines=13)
  finish("joint", config, killed)
  assert_same_run(tmp_path / "whole", killed, final_state)
