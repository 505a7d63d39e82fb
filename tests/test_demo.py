"""The parts of the demo: two answers that stream side by side, and the questions that it asks."""

import importlib.util
import io
import json
import pathlib

import pytest
from rich.console import Console

import specjax
from specjax.data import spec_bench
from specjax.decoding.decoder import pad_to_bucket

PATH = pathlib.Path(__file__).parents[1] / "examples" / "demo.py"
MODEL = specjax.load("gsm8k-7m")
QUESTION = "A pen costs 3 dollars. What do 7 pens cost?"


@pytest.fixture(scope="module")
def demo():
  found = importlib.util.spec_from_file_location("demo", PATH)
  module = importlib.util.module_from_spec(found)
  found.loader.exec_module(module)
  return module


@pytest.mark.slow
def test_columns_end_with_the_same_answer_and_their_own_passes(demo):
  console = Console(file=io.StringIO(), width=120)
  demo.race(console, MODEL, ("none", "medusa"), QUESTION, 24)
  said = console.file.getvalue()
  results = {d: specjax.generate(MODEL, [MODEL.chat(QUESTION)], drafter=d, max_new_tokens=24)[0]
             for d in ("none", "medusa")}  # fmt: skip
  for r in results.values():
    assert f"{len(r.tokens)} tokens, {r.passes} passes" in said
  (word, *_) = results["none"].text.split()
  assert said.count(word) >= 2 and "plain" in said and "medusa" in said


def test_questions_compile_alike(demo, tmp_path, monkeypatch):
  assert demo.some_questions.__doc__
  file = tmp_path / "bench.jsonl"
  texts = ["short", *(f"{i} " * 20 for i in range(9)), "long " * 400]
  kinds = ["qa", "rag", "translation"]
  records = [{"category": kinds[i % 3], "turns": [text]} for i, text in enumerate(texts)]
  file.write_text("".join(json.dumps(r) + "\n" for r in records))
  monkeypatch.setattr(spec_bench, "LOCAL", file)
  out = demo.some_questions(MODEL, tmp_path / "out" / "questions.jsonl")
  chosen = [json.loads(line) for line in pathlib.Path(out).read_text().splitlines()]
  assert len(chosen) == 6 and len({r["category"] for r in chosen}) == 3
  lengths = {pad_to_bucket(len(MODEL.chat(r["turns"][0]))) for r in chosen}
  assert lengths == {demo.LONGEST}
  monkeypatch.setattr(spec_bench, "LOCAL", tmp_path / "absent")
  assert demo.some_questions(MODEL, tmp_path / "q.jsonl") is None
