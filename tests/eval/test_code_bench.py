"""Tasks of a local coder: what passes, what is stopped, and the command on a tiny model."""

import json

import jax
import jax.numpy as jnp
import pytest

import specjax
from specjax.checkpoints import hf
from specjax.cli.main import main
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_bpe
from specjax.eval import code_sandbox, code_tasks, prompts
from specjax.models.config import Config
from specjax.models.transformer import Transformer

TASKS = code_tasks.read()
TESTED = [task for task in TASKS if task.tests]


def test_there_are_as_many_tasks_as_the_page_says():
  count = {c: sum(t.category == c for t in TASKS) for c in code_tasks.CATEGORIES}
  assert count == {"describe": 40, "edit": 20, "summarise": 10, "json": 10, "chat": 10}
  assert all(t.tests and t.solution for t in TASKS if t.category in ("describe", "edit", "json"))
  assert len({t.turns for t in TASKS}) == len(TASKS)


@pytest.mark.parametrize("task", TESTED, ids=lambda t: f"{t.category}-{t.number}")
def test_the_solution_passes_and_what_was_asked_does_not(task):
  """A file that was not edited, an empty object and a program of nothing are wrong."""
  fence = f"Here it is.\n```\n{task.solution}\n```\nDone."
  assert code_tasks.failure(task, fence) == ""
  asked = task.turns[0]
  wrong = {"describe": "pass", "json": "{}"}.get(task.category, asked)
  assert code_tasks.failure(task, wrong)


@pytest.mark.parametrize(
  ("program", "words"),
  [
    ("x = 1", ""),
    ("print('much' * 10**6)\nimport collections, dataclasses, json, math, re, typing", ""),
    ("assert 1 == 2", "AssertionError"),
    ("def f(:", "SyntaxError"),
    ("def f():\n  f()\nf()", "RecursionError"),
    ("while True:\n  pass", "stopped after 1 s"),
    ("import time\ntime.sleep(60)", "stopped after 1 s"),
    ("x = bytearray(2**31)", "MemoryError"),
    ("import sys\nsys.exit(0)", "SystemExit"),
    ("import os\nos._exit(0)", "ended early"),
    ("import os\nos.system('true')", "PermissionError: os.system"),
    ("import os\nos.fork()", "PermissionError: os.fork"),
    ("import os\nos.remove('x')", "PermissionError: os.remove"),
    ("import subprocess\nsubprocess.run(['true'])", "PermissionError: subprocess"),
    ("import socket\nsocket.socket()", "PermissionError: socket"),
    ("open('x', 'w')", "PermissionError: open"),
  ],
)
def test_programs_have_limits(program, words):
  said = code_sandbox.failure(program, 1)
  assert words in said and bool(words) == bool(said)


def test_memory_can_be_limited_further():
  program = "x = bytearray(100 << 20)"
  assert code_sandbox.failure(program) == ""
  assert "MemoryError" in code_sandbox.failure(program, memory=64 << 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random Llama with a tokenizer and a chat template."""
  tokenizer = train_bpe(prompts.OUR_QUESTIONS, 300)
  config = Config(tokenizer.vocab_size, 32, 1, 2, 1, 16, 48, max_length=2048)
  z = jnp.zeros((1, 2), jnp.int32)
  params = jax.jit(Transformer(config).init)(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  path = tmp_path_factory.mktemp("tiny")
  hf.save(path, config, params, tokenizer, template=TEMPLATES["qa"], dtype=jnp.float32)
  return specjax.load(str(path))


@pytest.mark.slow
def test_the_suite_is_a_command(model, tmp_path, capsys, monkeypatch):
  """The first JSON task's tests are emptied, so that one of the two answers passes."""
  easy = [
    task._replace(tests="import math", category="json") if task.number == 71 else task
    for task in TASKS
  ]
  monkeypatch.setattr(code_tasks, "read", lambda: easy)
  monkeypatch.setattr(code_tasks, "_answered", lambda _: "{}")
  out = tmp_path / "out"
  command = ["bench", "--suite", "code", "--model", model.name, "--drafters", "prompt_lookup-4",
             "--tasks", "json", "chat", "--limit", "3", "--max-new-tokens", "4", "--repeats", "1",
             "--out", str(out)]  # fmt: skip
  assert main(command) == 0
  said = capsys.readouterr().out
  assert "json (2)" in said and "chat (1)" in said and "0 of 3" in said and "1 of 2" in said
  summary = json.loads((out / "summary.json").read_text())
  counts = {"overall": [1, 2], "json": [1, 2]}
  assert summary["passed"] == {"none": counts, "prompt_lookup-4": counts}
  assert (out / "speedup.png").stat().st_size > 10_000
  lines = (out / "results.jsonl").read_text().splitlines()
  assert [json.loads(line)["passed"] for line in lines].count(True) == 2


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (("--prompts", "x.jsonl"), "--suite code asks its own tasks"),
    (("--no-verify-cost",), "--suite code does not measure this"),
    (("--methods", "factor"), "--suite code does not read this option"),
    (
      ("--tasks", "poem"),
      "`tasks` must be one of describe, edit, summarise, json, chat, got 'poem'.",
    ),
    (("--tasks", "edit", "edit"), "`tasks` must be one or more categories, each once"),
  ],
)
def test_options_are_refused(model, tmp_path, capsys, options, words):
  out = tmp_path / "out"
  code = main(["bench", "--suite", "code", "--model", model.name, *options, "--out", str(out)])
  assert code != 0 and words in " ".join(capsys.readouterr().err.split()) and not out.exists()
