"""Prompts of a file: every kind of record becomes the ids that the model should read."""

import json
import types

import pytest

from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import train_bpe
from specjax.eval import prompts
from specjax.names.load import Model

TOKENIZER = train_bpe(["the cat sat on the mat, system user assistant"] * 3, 300)
CONFIG = types.SimpleNamespace(vocab_size=300, max_length=200)
MODEL = Model("tiny", CONFIG, {}, TOKENIZER, (0,), (5,), TEMPLATES["chatml"])
BARE = Model("bare", CONFIG, {}, TOKENIZER, (0,), (5,), None)

SYSTEM, USER, SAID = (
  {"role": role, "content": text}
  for role, text in (("system", "Meow."), ("user", "the cat"), ("assistant", "sat"))
)
SHARE = [
  {"from": "system", "value": "Meow."}, {"from": "human", "value": "the cat"},
  {"from": "gpt", "value": "sat"}, {"from": "human", "value": "the mat"},
]  # fmt: skip
LAST = USER | {"content": "the mat"}


def read(tmp_path, *records, model=MODEL):
  path = tmp_path / "prompts.jsonl"
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return prompts.read(str(path), model, 8)


@pytest.mark.parametrize(
  ("record", "given", "turns"),
  [
    ({"question": "the cat"}, "the cat", [USER]),
    ({"turns": ["the cat", "the mat"]}, "the cat", [USER]),
    ({"messages": [USER]}, "the cat", [USER]),
    ({"messages": [SYSTEM, USER, SAID, LAST]}, "the mat", [SYSTEM, USER, SAID, LAST]),
    ({"messages": [SYSTEM, USER, SAID, LAST, SAID]}, "the mat", [SYSTEM, USER, SAID, LAST]),
    ({"conversations": SHARE}, "the mat", [SYSTEM, USER, SAID, LAST]),
    ({"conversations": SHARE[:3]}, "the cat", [SYSTEM, USER]),
  ],
)
def test_questions_and_conversations_are_in_the_template(tmp_path, record, given, turns):
  item = read(tmp_path, record | {"category": "cats"})[0]
  assert item == (given, TEMPLATES["chatml"].prompt(TOKENIZER, turns), "cats")


@pytest.mark.parametrize(
  ("record", "words"),
  [
    ({"messages": "hello"}, "`messages` must be a list of turns, got 'hello'."),
    ({"messages": []}, "`messages` must be a list of one turn at least, got []."),
    (
      {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
      "`tools` must be left out, for no template here is given tools, got [{'type': 'function'}].",
    ),
    (
      {"messages": [{"role": "assistant", "content": "a", "weight": 0}]},
      "messages[0]: `weight` must be 1, for every answer is learned alike, got 0.",
    ),
    ({"messages": None}, "`messages` must be a list of turns, got None."),
    (
      {"messages": ["hello"]},
      "`messages[0]` must be an object with the texts role and content, got 'hello'.",
    ),
    ({"messages": [USER, {"role": "user"}]}, "messages[1] lacks 'content'"),
    ({"messages": [USER | {"content": 7}]}, "messages[0]: `content` must be text, got 7."),
    ({"messages": [SAID]}, "a list with a turn that is not the assistant's"),
    ({"messages": [USER | {"role": "tool"}]}, "role='tool': this template has turns of user"),
    ({"conversations": [{"from": "human"}]}, "conversations[0] lacks 'value'"),
    ({"conversations": [USER]}, "conversations[0] lacks 'from'"),
  ],
)
def test_bad_conversations_are_one_sentence_with_their_number(tmp_path, record, words):
  with pytest.raises(ValueError) as refusal:
    read(tmp_path, {"messages": [USER]}, record)
  sentence = str(refusal.value)
  assert "record 2: " in sentence and words in sentence and sentence.count("record 2") == 1


def test_a_conversation_needs_a_template(tmp_path):
  assert read(tmp_path, {"question": "the cat"}, model=BARE)[0].ids == BARE.encode("the cat")
  with pytest.raises(ValueError, match="record 1: bare has no chat template"):
    read(tmp_path, {"messages": [USER]}, model=BARE)
