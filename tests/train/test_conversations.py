"""Conversations of several turns in JSONL: what is trained of them, and what is answered."""

import dataclasses
import json

import pytest
from options import changed

import specjax
from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES
from specjax.data.jinja_chat import JinjaTemplate
from specjax.train import denoiser, heads, lm
from specjax.train.recipe import answers, texts

TURNS = [
  {"role": "user", "content": "3 pens and 4?"}, {"role": "assistant", "content": "3 + 4 = 7."},
  {"role": "user", "content": "and 5?"}, {"role": "assistant", "content": "7 + 5 = 12."},
]  # fmt: skip
SHARE = [{"from": f, "value": t["content"]} for f, t in zip(["human", "gpt"] * 2, TURNS)]  # noqa: B905
MESSAGES = {"messages": TURNS}
CONVERSATIONS = {"conversations": SHARE}
PAIR = {"question": "3 pens and 4?", "answer": "3 + 4 = 7."}
SOURCE = """\
{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}|
{% endfor %}{{ '<a>' if add_generation_prompt }}"""
TEXT = "<u>3 pens and 4?|\n<a>3 + 4 = 7.|\n<u>and 5?|\n<a>7 + 5 = 12.|\n"
SAID = "3 + 4 = 7.|7 + 5 = 12.|"


def write(path, *records):
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return str(path)


@pytest.fixture(scope="module")
def talker(tiny, tmp_path_factory):
  """A language model that is trained on conversations; its directory."""
  home = tmp_path_factory.mktemp("talker")
  data = write(home / "data.jsonl", *[MESSAGES, CONVERSATIONS, PAIR] * 8)
  lm.main(changed(tiny, data=data, out=str(home / "run"), steps=2, batch=1, length=192,
                  template="chatml"))  # fmt: skip
  return home / "run" / "model"


@pytest.fixture(scope="module")
def model(talker, tmp_path_factory):
  """The same with a template in Jinja."""
  path, old = tmp_path_factory.mktemp("jinja"), hf.load(talker)
  hf.save(path, old.config, old.params, old.tokenizer, template=JinjaTemplate(SOURCE))
  return specjax.load(str(path))


def test_what_generate_writes_is_questions_and_answers(tmp_path):
  data = write(tmp_path / "said.jsonl", {"prompt": "3 pens and 4?", "text": "3 + 4 = 7."})
  config = lm.Config(data=data, out="", template="chatml", fields=("prompt", "text"))
  assert texts.read(config) == [TURNS[:2]]
  assert texts.read(lm.Config(data=data, out="", template="chatml")) == ["3 + 4 = 7."]


def text_of(model, ids) -> str:
  return model.tokenizer.inner.decode(list(ids), skip_special_tokens=False)


@pytest.mark.slow
def test_a_language_model_learns_from_conversations(talker):
  model = specjax.load(str(talker))
  assert model.template == TEMPLATES["chatml"]
  config = lm.Config(data="", out="", template="chatml")
  documents = [lm.documents(turns, config, model.tokenizer) for turns in (TURNS, TURNS[:2])]
  ((ids, mask),), ((pair, _),) = documents
  assert all(mask) and text_of(model, ids).count("<|im_start|>") == 4 and ids[: len(pair)] == pair
  result = specjax.generate(model, [model.chat([{"role": "system", "content": "3"}, *TURNS[:3]])],
                            max_new_tokens=3)  # fmt: skip
  assert result[0].emitted


@pytest.mark.parametrize("record", [MESSAGES, CONVERSATIONS])
def test_every_answer_of_a_conversation_is_trained(model, tmp_path, record):
  data = write(tmp_path / "data.jsonl", record, PAIR)
  config = heads.Config(model="", data=data, out="")
  (ids, mask), (pair, spoken) = answers.given(model, config, "answer")
  assert text_of(model, ids) == TEXT
  assert text_of(model, [i for i, m in zip(ids, mask, strict=True) if m]) == SAID
  assert pair == ids[: len(pair)] and spoken == mask[: len(pair)]


@pytest.mark.parametrize("record", [MESSAGES, CONVERSATIONS])
def test_the_last_question_of_a_conversation_is_asked(model, tmp_path, record):
  config = heads.Config(model="", data=write(tmp_path / "data.jsonl", record, PAIR), out="")
  asked, alone = answers.ask(model, config)
  assert text_of(model, asked) == TEXT[: TEXT.rindex("7 +")]
  assert alone == model.chat(PAIR["question"])


def test_a_denoiser_reads_the_template_of_its_start(model):
  end = 0
  rows = denoiser.rows_of([TURNS], 64, model.template, model.tokenizer, end)
  spoken = [i for i, m in zip(rows.tokens[0], rows.mask[0], strict=True) if m and i != end]
  assert text_of(model, spoken) == SAID
  assert rows.mask[0, -1] and rows.tokens[0, -1] == end


THINKING = """\
{% for m in messages %}<{{ m.role[0] }}>\
{{ m.content if loop.last else m.content.split('~')[-1] }}|
{% endfor %}{{ '<a>' if add_generation_prompt }}"""
CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_it_is_said_how_much_of_the_answers_is_trained_and_why(model, tmp_path, capsys):
  """The thinking before ~ is shown in the last answer alone."""
  turns = [TURNS[0], {"role": "assistant", "content": "Hm.~7."}, TURNS[2],
           {"role": "assistant", "content": "Hm!~12."}]  # fmt: skip
  calls = [TURNS[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}, *TURNS[2:]]
  data = write(tmp_path / "data.jsonl", {"messages": turns}, {"messages": calls}, PAIR)
  thinking = dataclasses.replace(model, template=JinjaTemplate(THINKING))
  documents = answers.given(thinking, heads.Config(model="", data=data, out=""), "answer")
  trained = [text_of(model, [i for i, m in zip(*d, strict=True) if m]) for d in documents]
  assert trained[0] == "Hm!~12.|" and trained[2] == "3 + 4 = 7.|"
  count = sum(sum(mask) for _, mask in documents)
  lost = len(model.tokenizer.encode("Hm.~7.|"))
  said = capsys.readouterr().out
  assert f"{count} of the answers' {count + lost} tokens are trained: the chat template" in said
  assert "1 tool calls are not trained: the chat template does not write them." in said
  pair = heads.Config(model="", data=write(tmp_path / "pair.jsonl", PAIR), out="")
  answers.given(model, pair, "answer")
  assert capsys.readouterr().out == ""


BAD = [
  (
    {"messages": [TURNS[0], 7]},
    r"`messages\[1\]` must be an object with the texts role and content, got 7\.",
  ),
  ({"messages": [{"role": "robot", "content": "x"}]}, "record 2: .*role='robot'"),
  ({"conversations": [{"from": "gpt"}]}, r"record 2: conversations\[0\] lacks 'value'"),
  ({"messages": {}}, r"`messages` must be a list of turns, got \{\}\."),
  ({"message": TURNS}, "record 2 has no text in field 'question'"),
]


@pytest.mark.parametrize(("record", "words"), BAD)
def test_bad_rows_are_named_by_their_number(tiny, talker, tmp_path, record, words):
  data = write(tmp_path / "data.jsonl", MESSAGES, record)
  with pytest.raises(ValueError, match=words):
    lm.main(changed(tiny, data=data, out=str(tmp_path / "out")))
  model = specjax.load(str(talker))
  for read in (answers.ask, lambda *a: answers.given(*a, "answer")):
    with pytest.raises(ValueError, match=words):
      read(model, heads.Config(model="", data=data, out=""))
