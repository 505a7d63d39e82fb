"""The examples are short, and run as their first lines say."""

import ast
import importlib.util
import json
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from cut import cut

import specjax
from specjax.serving.engine import Engine
from specjax.serving.run import Uvicorn, bound, configured

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(capsys, name: str, **options) -> str:
  """What an example prints."""
  found = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
  module = sys.modules[name] = importlib.util.module_from_spec(found)
  found.loader.exec_module(module)
  module.main(module.Config(**options))
  return capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short(path):
  assert path.stem == "demo" or path.read_text().count("\n") <= 60


@pytest.fixture
def small(monkeypatch):
  """The toy that ships, of one layer."""
  monkeypatch.setattr(specjax, "load", lambda name="gsm8k-7m": cut())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["speculative_decoding", "own_drafter"])
def test_drafts_change_no_token(capsys, small, name, temperature):
  said = run(capsys, name, temperature=temperature)
  assert "same tokens: True" in said and "False" not in said


def test_a_mistake_in_a_verifier_is_found(capsys):
  right, wrong = run(capsys, "own_verifier").splitlines()
  assert right.endswith(", EXACT") and wrong.endswith(", NOT EXACT")


@pytest.mark.slow
def test_a_policy_fills_the_slots_that_it_may(capsys):
  text, passes = run(capsys, "own_policy", slots=4).splitlines()
  assert text == "Leo Kim Bob Ada" and passes == "4 passes for 16 slots"


@pytest.mark.slow
def test_a_canvas_fills_in(capsys):
  one, *rows = run(capsys, "denoising").splitlines()
  assert one == "confidence: Ada Bob Kim Leo in 16 passes"
  assert [row.count("#") for row in rows[:16]] == list(range(1, 17))
  assert rows[16].startswith("threshold-0.9: Ada Bob Kim Leo in ") and rows[-1] == "  " + "#" * 16


@pytest.mark.slow
def test_a_head_is_trained_and_drafts(capsys, tmp_path):
  data = tmp_path / "questions.jsonl"
  data.write_text(
    "".join(json.dumps({"question": f"What is {i} times 3?"}) + "\n" for i in range(10))
  )
  said = run(
    capsys, "train_eagle3", data=str(data), out=str(tmp_path / "run"), questions=10, steps=2
  )
  assert said.endswith(" tokens per pass\n")


@pytest.mark.slow
def test_the_client_asks_a_server():
  decoder = specjax.Decoder(cut(), "prompt_lookup-3", "target_only", batch=2)
  with Engine(decoder, max_length=256) as engine, bound("127.0.0.1", 0) as place:
    server = Uvicorn(configured(engine, 60.0), engine)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    ends = time.monotonic() + 30
    while not server.started and time.monotonic() < ends:
      time.sleep(0.01)
    url = f"http://127.0.0.1:{place.getsockname()[1]}/v1"
    command = [sys.executable, ROOT / "examples" / "server_client.py", "--url", url]
    ran = subprocess.run([*command, "--max-tokens", "8"], capture_output=True, text=True)
    server.should_exit = True
    thread.join(30)
  assert ran.returncode == 0, ran.stderr
  assert ran.stdout.count(" nats a token: ") == 2


def test_prompts_are_functions_to_write_and_to_change(capsys, tmp_path):
  out = tmp_path / "prompts.jsonl"
  run(capsys, "code_prompts", out=str(out))
  asked = [json.loads(line)["question"] for line in out.read_text().splitlines()]
  assert len(set(asked)) == 400 and all(one.startswith("Write a ") for one in asked[::2])
  for one in asked[1::2]:
    ast.parse(one.split("```python\n")[1].removesuffix("```"))


def test_prompts_of_daily_use_are_many_and_of_all_kinds(capsys, tmp_path):
  out = tmp_path / "prompts.jsonl"
  run(capsys, "daily_prompts", out=str(out))
  asked = [json.loads(line)["question"] for line in out.read_text().splitlines()]
  assert len(set(asked)) == len(asked) > 800
  records = [one for one in asked if "JSON" in one.split("\n")[-1]]
  summaries = [one for one in asked if one.startswith("Summarise ")]
  assert min(len(records), len(summaries), len(asked) - len(records) - len(summaries)) >= 200
