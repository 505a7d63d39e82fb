"""Texts in which a model corrects itself: what is written, what is learned of it, and kills."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import specjax
from specjax.data.chat import TEMPLATES
from specjax.data.sources import open_source
from specjax.train import corrections, lm
from specjax.train.recipe import writer
from specjax.train.recipe.texts import turns_of

MODEL = specjax.load("gsm8k-7m")
CHAT = dataclasses.replace(MODEL, template=TEMPLATES["chatml"])
OWN = ["Nine boxes have 40 pens.", "The price is $6.", "Two hats.", ""]
RIGHT = ["Nine boxes have 45 pens.", "The price is $6.", "Three hats.", "Four."]
CORRECTED = [" No, 45 pens.", None, " Three hats.", " Four."]  # None is cut


def ended(text: str) -> list[int]:
  return [*MODEL.tokenizer.encode(text), MODEL.stop[0]]


def test_a_beginning_is_any_part_of_what_was_said():
  own = ended("one two three")
  found = {tuple(corrections.beginning(MODEL, own, np.random.default_rng(i))) for i in range(200)}
  assert found == {tuple(own[: i + 1]) for i in range(len(own) - 1)}
  assert corrections.beginning(MODEL, ended(""), np.random.default_rng(0)) == []


@pytest.mark.parametrize("begun, text", [
  ("It is 4", "It is 45."),
  ("It is 46", "It is 46 No, once more: It is 45."),
])  # fmt: skip
def test_the_right_answer_goes_on_with_what_is_right(begun, text):
  assert corrections.by_reference(begun, "It is 45.") == text


class Killed(Exception):
  pass


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Corrects answers of a model whose words are known; it is killed before request `end`."""
  data = tmp_path / "right.jsonl"
  lines = [{"question": f"Q{i}?", "answer": text} for i, text in enumerate(RIGHT)]
  data.write_text("".join(json.dumps(x) + "\n" for x in lines))
  asked = {}

  def write(name: str, by: str = "model", end: int = 99) -> list[dict]:
    def refilled(decoder, left, budget, numbers):
      for i, number in enumerate(numbers):
        if number >= end:
          raise Killed
        asked[number] = left[i]
        text = [*OWN, *CORRECTED][number]
        yield i, SimpleNamespace(tokens=[5] * 3 if text is None else ended(text))

    monkeypatch.setattr(writer, "refilled", refilled)
    monkeypatch.setattr(corrections.answers, "teacher", lambda name, **options: CHAT)
    corrections.main(corrections.Config(
      model="gsm8k-7m", data=str(data), out=str(tmp_path / name), by=by, max_new_tokens=20,
    ))  # fmt: skip
    source = open_source(str(tmp_path / name / "corrections.jsonl"))
    return [source[i] for i in range(len(source))]

  write.asked = asked
  return write


def test_the_model_goes_on_behind_its_words_and_knew_the_right_answer(run):
  found = [x["messages"] for x in run("whole")]
  assert [x[0]["content"] for x in found] == ["Q0?", "Q2?"]
  for question, said in found:
    i = int(question["content"][1])
    assert OWN[i].startswith(said["begun"]) and said["begun"]
    assert said["content"] == said["begun"] + CORRECTED[i]
    told = MODEL.decode(run.asked[len(OWN) + i])
    assert RIGHT[i] in told and told.endswith(said["begun"])
    assert RIGHT[i] not in MODEL.decode(run.asked[i])


@pytest.mark.parametrize("end", [2, 6])
def test_a_killed_run_goes_on(run, end):
  with pytest.raises(Killed):
    run("killed", end=end)
  assert run("killed") == run("whole")


def test_only_the_correction_is_learned(run, tiny):
  for record in run("reference", by="reference"):
    turns = turns_of(record, ("question", "answer"), 0)
    ((ids, learned),) = lm.documents(turns, tiny, MODEL.tokenizer)
    said = record["messages"][1]
    spoken = [i for i, own in zip(ids, learned, strict=True) if own]
    text = MODEL.tokenizer.inner.decode(spoken, skip_special_tokens=False)
    assert text == said["content"][len(said["begun"]) :] + "<|end|>"
    whole = MODEL.tokenizer.inner.decode(ids, skip_special_tokens=False)
    assert (
      whole
      == f"Question: Q{record['messages'][0]['content'][1]}?\nAnswer: {said['content']}<|end|>"
    )


def test_what_did_not_begin_so_is_refused(tiny):
  turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "begun": "c"}]
  with pytest.raises(ValueError, match=r"begun.* must be the beginning of the content"):
    lm.documents(turns, tiny, MODEL.tokenizer)
