"""Prompts that a model writes itself: what is kept of them, and that a killed run goes on."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

import specjax
from specjax.data.chat import TEMPLATES
from specjax.data.sources import open_source
from specjax.train import prompts
from specjax.train.recipe import writer
from specjax.train.recipe.questions import (
  Seen,
  first_sentence,
  spoken,
  task,
  texts_in,
  until_user,
)  # fmt: skip

MODEL = specjax.load("gsm8k-7m")
CHAT = dataclasses.replace(MODEL, template=TEMPLATES["chatml"])
QUESTIONS = [
  "How many pens are in nine boxes of five pens each?",
  "How many pens are in nine boxes of five pens each, and how many in ten?",  # repeats the first
  "What is the price of three hats?",
  "Tom reads seven books a week. How many books does he read in four weeks?",
  None,  # cut
  "Who bakes the bread that they sell at the market on Sunday mornings?",  # of the benchmark
  "How far is it to the station?",
  "Name a fruit.",
  "Where is the nearest hat shop?",
]
ANSWERS = [
  "There are 45 pens.",
  "They cost $6. That is cheap.",
  None,
  "two miles",
  "An apple.",
  "There.",
]
FOLLOWING = "And of eleven hats?"


@pytest.mark.parametrize("name", ["chatml", "llama3", "vicuna"])
def test_a_conversation_is_cut_where_its_user_begins_to_speak(name):
  model = dataclasses.replace(MODEL, template=TEMPLATES[name])
  before = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
  for turns in ((), before):
    prefix, whole = (
      x for x in (until_user(model, turns), model.chat([*turns, {"role": "user", "content": "So"}]))
    )
    assert whole[: len(prefix)] == prefix
    assert model.decode(whole[len(prefix) :]).lstrip().startswith("So")


def ended(text: str) -> list[int]:
  return [*MODEL.tokenizer.encode(text), MODEL.stop[0]]


@pytest.mark.parametrize("ids, text", [
  (ended("How many pens?"), "How many pens?"),
  (ended(" two lines\n"), "two lines"),
  (MODEL.tokenizer.encode("How many"), None),
  ([MODEL.stop[0]], None),
  ([], None),
  (ended("a <|im_start|> b"), None),
])  # fmt: skip
def test_a_turn_is_text_that_ended_by_itself(ids, text):
  assert spoken(MODEL, ids) == text


@pytest.mark.parametrize("said, text", [
  ("Two pens. And five", "Two pens."), ("Two pens? No! And", "Two pens? No!"), ("Two", None),
])  # fmt: skip
def test_a_cut_turn_keeps_its_whole_sentences(said, text):
  assert spoken(MODEL, MODEL.tokenizer.encode(said), cut=True) == text
  assert spoken(MODEL, ended(said), cut=True) == said


@pytest.mark.parametrize("text, sentence", [
  ("Yes. There are five pens in it. More.", "There are five pens in it."),
  ("list\n- The first item has no end\nBut this line has one!", "But this line has one!"),
  ("It costs 3.50 dollars in the shop. Yes.", "It costs 3.50 dollars in the shop."),
  ("nothing here", None),
])  # fmt: skip
def test_the_first_sentence(text, sentence):
  assert first_sentence(text) == sentence


def test_tasks_hold_the_text_or_its_sentence():
  text = "Yes. There are five pens in it. More."
  assert task("summary", "Q?", text) == f"Summarize: {text}"
  assert task("german", "Q?", text).endswith(": There are five pens in it.")
  assert task("german", "Q?", "none") is None
  context = task("context", "Q?", text)
  assert context.startswith(text) and context.endswith("Q?")


def test_eight_successive_words_are_a_repeat():
  seen = Seen(["one two three four five six seven eight nine"])
  assert not seen.is_new("And: TWO three four, five six seven eight nine!")
  assert seen.is_new("three four five six seven eight nine ten")
  assert not seen.is_new("zero three four five six seven eight nine ten")
  assert seen.is_new("short") and not seen.is_new("Short!")


@pytest.mark.parametrize("record, texts", [
  ({"question": "a"}, ["a"]),
  ({"turns": ["a", "b"]}, ["a", "b"]),
  ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, ["a"]),
  ({"other": 1}, []),
])  # fmt: skip
def test_what_a_user_says(record, texts):
  assert texts_in(record, "question") == texts


class Killed(Exception):
  pass


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Writes prompts with a model whose words are known; it is killed before request `end`."""
  avoid = tmp_path / "bench.jsonl"
  avoid.write_text(json.dumps({"turns": [f"Hm. {QUESTIONS[5]}"]}) + "\n")
  more = tmp_path / "more.jsonl"
  more.write_text("".join(json.dumps({"question": f"{i} + {i}?"}) + "\n" for i in range(9)))
  said = [*QUESTIONS, *ANSWERS, FOLLOWING]

  def write(name: str, end: int = 99) -> list[dict]:
    def refilled(decoder, left, budget, numbers):
      for i, number in enumerate(numbers):
        if number >= end:
          raise Killed
        text = said[number]
        yield i, SimpleNamespace(tokens=[5] * 3 if text is None else ended(text))

    monkeypatch.setattr(writer, "refilled", refilled)
    monkeypatch.setattr(prompts.answers, "teacher", lambda name, causal: CHAT)
    prompts.main(prompts.Config(
      model="gsm8k-7m", out=str(tmp_path / name), questions=9, texts=6, join=(str(more),),
      joined=2, avoid=(str(avoid),),
    ))  # fmt: skip
    source = open_source(str(tmp_path / name / "prompts.jsonl"))
    return [source[i] for i in range(len(source))]

  return write


def test_prompts_of_every_kind_are_written(run):
  found = run("whole")
  by_kind = {kind: [r for r in found if r["kind"] == kind] for kind in {r["kind"] for r in found}}
  own = [QUESTIONS[i] for i in (0, 2, 3, 6, 7, 8)]
  assert sorted(r["question"] for r in by_kind["question"]) == sorted(own)
  assert sorted(r["question"] for r in by_kind["joined"]) == ["0 + 0?", "1 + 1?"]
  assert [r["question"] for r in by_kind["summary"]] == ["Summarize: There are 45 pens."]
  assert by_kind["context"][0]["question"].endswith(QUESTIONS[2])
  (second,) = by_kind["second"]
  assert [turn["content"] for turn in second["messages"]] == [QUESTIONS[8], "There.", FOLLOWING]
  assert "german" not in by_kind  # "two miles" is no sentence
  assert found != sorted(found, key=str)


@pytest.mark.parametrize("end", [3, 9, 12, 15])
def test_a_killed_run_goes_on(run, end):
  with pytest.raises(Killed):
    run("killed", end)
  assert run("killed") == run("whole")


def test_a_model_that_writes_no_question_is_refused(run, monkeypatch):
  monkeypatch.setattr(prompts, "spoken", lambda *arguments, **more: None)
  with pytest.raises(
    ValueError, match=("`model` must be a chat model that was trained on what users say, too:")
  ):
    run("cut")
