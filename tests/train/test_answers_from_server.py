"""Answers by a server: one that fails as servers do, and ours in a process of its own."""

import contextlib
import http.server
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest
from options import changed
from sentences import says

import specjax
from specjax.data.chat import questions
from specjax.train import heads
from specjax.train.recipe import answers, labels, server
from specjax.train.recipe.config import Training
from specjax.train.recipe.server import Asking, Said, spelled

TALK = [
  {"role": "user", "content": "Ann has 3 pens. How many?"},
  {"role": "assistant", "content": "Nobody reads this."},
  {"role": "user", "content": "And with 4 more?"},
]
PLAIN = {"question": "Tom has 7 cups. How many?"}
OTHER = {"question": "Sue has 2 hats. How many?"}


class Stub(http.server.ThreadingHTTPServer):
  """A server with one model, which answers with a text that says what it was asked.

  Attributes:
    fails: what it does with the next questions in place of answers: a status, bytes that it answers
      with, or None to hang up.
    asked: the bodies of all questions.
    names: of its models.
  """

  def __init__(self, fails=(), names=("m",), port: int = 0):
    super().__init__(("127.0.0.1", port), Handler)
    self.fails, self.names, self.asked = list(fails), names, []
    self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *words):
    pass

  def send(self, status: int, body: bytes) -> None:
    self.send_response(status)
    self.send_header("Retry-After", "0")
    self.end_headers()
    self.wfile.write(body)

  def do_GET(self):
    self.send(200, json.dumps({"data": [{"id": name} for name in self.server.names]}).encode())

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    self.server.asked.append(body)
    fail = self.server.fails.pop(0) if self.server.fails else 0
    if fail is None:
      self.close_connection = True
      self.connection.shutdown(socket.SHUT_RDWR)
    elif isinstance(fail, bytes):
      self.send(200, fail)
    elif fail:
      self.send(fail, b'{"error": {"message": "no"}}')
    else:
      self.send(200, completion(said(body["messages"])))


def said(messages) -> str:
  """What the stub answers."""
  return f" She has {len(messages)} of them, {len(messages[-1]['content'])}."


def completion(text, end: str = "stop", **more) -> bytes:
  message = {"role": "assistant", "content": text, **more}
  return json.dumps({"choices": [{"message": message, "finish_reason": end}]}).encode()


@contextlib.contextmanager
def running(*arguments, **options):
  with Stub(*arguments, **options) as stub:
    thread = threading.Thread(target=stub.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield stub
    finally:
      stub.shutdown()
      thread.join()


@pytest.fixture(scope="module")
def model():
  return specjax.load("gsm8k-7m")


@pytest.fixture
def settings(tmp_path, monkeypatch):
  monkeypatch.setattr(server, "WAITS", (0.01, 0.01))
  data = tmp_path / "data.jsonl"
  data.write_text("".join(json.dumps(x) + "\n" for x in ({"messages": TALK}, PLAIN, OTHER)))
  return heads.Config(
    "gsm8k-7m", str(data), str(tmp_path), held_out=1, max_new_tokens=24, answer_batch=1,
    every_turn=True, training=Training(batch=1),
  )  # fmt: skip


def lines(settings) -> list[dict]:
  text = pathlib.Path(settings.out, "answers.jsonl").read_text()
  return sorted(map(json.loads, text.splitlines()), key=lambda x: x["number"])


def answered(model, settings):
  return answers.answered(model, answers.asked(model, settings), settings)


def test_every_turn_is_answered_after_the_answers_before_it(model, settings):
  with running() as stub:
    talks = answered(model, changed(settings, answers_from=stub.url))
  first, second = TALK[0], TALK[2]
  own = {"role": "assistant", "content": said([first]).strip()}  # as the template spells it
  asked = [[first], [first, own, second], *(
    [{"role": "user", "content": x["question"]}] for x in (PLAIN, OTHER)
  )]  # fmt: skip
  assert sorted(map(str, (x["messages"] for x in stub.asked))) == sorted(map(str, asked))
  assert {(x["model"], x["max_tokens"], x["temperature"]) for x in stub.asked} == {("m", 24, 0.0)}
  found = lines(settings)
  assert [x["number"] for x in found] == [0, 1, 2, 3]
  for line, turns in zip(found, asked, strict=True):
    assert line["prompt"] == model.chat(turns)
    assert model.decode(line["answer"], line["prompt"]) == said(turns)
    assert line["answer"][-1] in model.stop
  # The template repeats the first turn token by token, so that a conversation is one text.
  ((ids, mask),), *others = talks
  assert ids == found[1]["prompt"] + found[1]["answer"]
  trained = [i for i, own in zip(ids, mask, strict=True) if own]
  assert trained == found[0]["answer"] + found[1]["answer"]
  parts = answers.parts(talks, settings.held_out)
  assert parts == {labels.TRAIN: [text for (text,) in others], labels.HELD_OUT: [(ids, mask)]}


def test_the_last_question_alone_is_asked_by_default(model, settings):
  with running() as stub:
    answered(model, changed(settings, answers_from=stub.url, every_turn=False, answer_batch=3))
  assert sorted(len(x["messages"]) for x in stub.asked) == [1, 1, 3]
  assert TALK in [x["messages"] for x in stub.asked]


def test_what_fails_is_asked_again(model, settings, capsys):
  with running([503, None, 0, 429, 500]) as stub:
    found = answered(model, changed(settings, answers_from=f"{stub.url}#m"))
  assert len(found) == 3 and len(stub.asked) == 4 + 4
  assert "question 1 is asked again (503: " in capsys.readouterr().err


def test_a_server_that_goes_loses_nothing(model, settings):
  with running([0, 0, None, None, None]) as stub:
    ours = changed(settings, answers_from=stub.url)
    with pytest.raises(
      ValueError, match=r"does not answer question 4 after 3 tries .* continues\."
    ):
      answered(model, ours)
  kept = lines(settings)
  assert [x["number"] for x in kept] == [0, 2]
  with pathlib.Path(settings.out, "answers.jsonl").open("a") as file:
    file.write('{"number": 3, "pro')  # as a kill leaves it
  with running() as again:
    found = answered(model, changed(ours, answers_from=again.url))
    assert len(again.asked) == 2
    whole = lines(settings)
    assert [x for x in whole if x["number"] in (0, 2)] == kept
    assert answered(model, changed(ours, answers_from=again.url)) == found
    assert len(again.asked) == 2


GONE = "http://127.0.0.1:9/v1"
WRONG = {
  "no address": (
    "localhost:8000", (),
    "`answers_from` must be the address of a server, as http://127.0.0.1:8000/v1, got",
  ),
  "nobody there": (GONE, (), "must be a server of OpenAI's protocol: "),
  "another model": ("URL#b", (), "must be followed by #NAME, one of m, got 'b'."),
  "refused": ("URL", [400], 'refuses question 1 (400: {"error": {"message": "no"}}).'),
  "no completion": ("URL", [b"[]"], "answers with what is no chat completion: []."),
  "thinking": ("URL", [completion("7", reasoning_content="Hm.")], "takes the thinking out"),
  "filtered": ("URL", [completion("", "content_filter")],
               "must end an answer by stop or length, got 'content_filter'."),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_answer_is_one_sentence(model, settings, name):
  address, fails, words = WRONG[name]
  with running(fails) as stub, pytest.raises(ValueError) as refusal:
    answered(model, changed(settings, answers_from=address.replace("URL", stub.url)))
  assert says(str(refusal.value), words) and str(refusal.value).endswith(".")
  assert "\n" not in str(refusal.value)


def test_one_of_several_models_is_named(model, settings):
  with running(names=("a", "b")) as stub:
    with pytest.raises(ValueError, match="must be followed by #NAME, one of a, b, got none"):
      answered(model, changed(settings, answers_from=stub.url))
    answered(model, changed(settings, answers_from=f"{stub.url}#b"))
  assert {x["model"] for x in stub.asked} == {"b"}


def test_other_options_beside_answers_of_the_data_are_refused(settings):
  for change in ({"answers_from": GONE}, {"every_turn": True}):
    ours = changed(settings, every_turn=False, answer_field="answer")
    with pytest.raises(ValueError, match="must be left out with answer_field='answer'"):
      heads.main(changed(ours, **change))


def test_a_cut_answer_has_no_end_and_its_half_character_is_left_out(model):
  turns = TALK[:1]
  asking = Asking(model.chat(turns), turns, 24)
  whole, same = spelled(model, asking, Said(" 3 pens", True))
  cut, half = (spelled(model, asking, Said(text, False)) for text in (" 3 pens", " 3 pens\ufffd"))
  assert same and cut == half == (whole[:-1], True) and whole[-1] in model.stop
  ids, same = spelled(model, asking, Said(" 3 pens\n", False))
  assert same and model.decode(ids, asking.prompt) == " 3 pens\n"
  # The template writes a space that the server did not.
  ids, same = spelled(model, asking, Said("3 pens", True))
  assert not same and ids == whole


@pytest.mark.parametrize(
  ("roles", "parts"),
  [("u", ["u"]), ("suaua", ["su", "u"]), ("aua", ["au"]), ("uuaau", ["uu", "u"])],
)
def test_the_questions_of_a_conversation(roles, parts):
  names = {"s": "system", "u": "user", "a": "assistant"}
  turns = [{"role": names[x], "content": str(i)} for i, x in enumerate(roles)]
  found = questions(turns)
  assert ["".join(turn["role"][0] for turn in part) for part in found] == parts
  flat = [turn for part in found for turn in part]
  assert [x for x in turns if x in flat] == flat
  tool = [*turns, {"role": "tool", "content": "5"}, *TALK[:1]]
  with pytest.raises(ValueError, match="no tool's where every turn is answered anew, got 'tool'"):
    questions(tool)


@pytest.mark.slow
def test_our_own_server_writes_what_the_engine_writes(lm_run, settings, tmp_path):
  """Greedy answers, ids and all; both are those of one question after another, decoded alone."""
  model = specjax.load(name := f"{lm_run.out}/model")
  talk = [
    {"role": "user", "content": "3 pens and 4?"}, {"role": "assistant", "content": "Not read."},
    {"role": "user", "content": "9 hats and 2?"},
  ]  # fmt: skip
  data = tmp_path / "sums.jsonl"
  records = ({"messages": talk}, {"question": "7 cups and 1?"}, {"question": "5 figs and 5?"})
  data.write_text("".join(json.dumps(x) + "\n" for x in records))
  settings = changed(settings, model=name, data=str(data), length=64, answer_batch=4)
  command = [sys.executable, "-m", "specjax.cli", "serve", "--model", name, "--batch", "4",
             "--port", "0"]  # fmt: skip
  root = str(pathlib.Path(specjax.__file__).parents[1])
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root}
  ) as process:
    line = process.stdout.readline()
    url = line.split(" at ")[1].split(",")[0]
    ours = changed(settings, answers_from=url, out=str(tmp_path / "server"))
    by_server = answered(model, ours)
    process.terminate()
    process.wait(30)
  alone = changed(settings, out=str(tmp_path / "engine"))
  assert answered(model, alone) == by_server
  assert lines(alone) == lines(ours)
  turns = talk[:1]
  for line, further in zip(lines(alone), ([talk[2]], []), strict=False):
    prompt = model.chat(turns)
    (result,) = specjax.generate(model, [prompt], max_new_tokens=min(24, 64 - len(prompt)))
    assert (line["prompt"], line["answer"]) == (prompt, result.tokens)
    text = model.decode(result.tokens, prompt).strip()
    turns += [{"role": "assistant", "content": text}, *further]
