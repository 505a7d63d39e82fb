"""Responses, by OpenAI's own client: the texts of chats, and the typed events of a stream."""

import dataclasses
import json

import openai
import pytest
from sentences import says
from test_server import CALLED, CALLING, GREEDY, NAME, NEW, client_of, get, running, save

import specjax
from specjax.data.tokenizer import train_bpe
from specjax.serving.engine import Engine


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  tokenizer = train_bpe(["the cat sat on the mat, Question: Answer: the dog é ü 猫"] * 2, 300)
  path = tmp_path_factory.mktemp("models") / NAME
  return specjax.load(save(path, tokenizer, tokenizer.vocab_size))


@pytest.fixture(scope="module")
def engine(model):
  decoder = specjax.Decoder(
    model, "prompt_lookup-4", "target_only", batch=2, processors=["penalties", "json_schema"]
  )
  with Engine(decoder, max_length=64) as engine:
    yield engine


@pytest.fixture(scope="module")
def port(engine):
  with running(engine) as (_, port):
    yield port


@pytest.fixture(scope="module")
def client(port):
  with client_of(port) as client:
    yield client


def chat(client, messages, **options):
  found = client.chat.completions.create(model=NAME, messages=messages, max_tokens=NEW, **options)
  return found.choices[0].message.content


USER = {"role": "user", "content": "the cat"}
PARTS = {"role": "user", "content": [{"type": "input_text", "text": "the "},
                                     {"type": "input_text", "text": "cat"}]}  # fmt: skip


@pytest.mark.parametrize("given", ["the cat", [USER], [PARTS], [{"type": "message", **USER}]])
def test_an_answer_is_that_of_a_chat(client, given):
  found = client.responses.create(model=NAME, input=given, max_output_tokens=NEW, **GREEDY)
  assert found.output_text == chat(client, [USER], **GREEDY)
  assert found.status == "incomplete" and found.incomplete_details.reason == "max_output_tokens"
  assert found.usage.output_tokens == NEW and found.usage.input_tokens_details.cached_tokens == 0
  assert found.usage.total_tokens == found.usage.input_tokens + NEW
  assert (found.object, found.model, found.temperature) == ("response", NAME, 0.0)


def test_typed_events(client):
  options = {"model": NAME, "input": "the cat", "max_output_tokens": NEW, **GREEDY}
  whole = client.responses.create(**options)
  events = list(client.responses.create(stream=True, **options))
  kinds = [x.type.removeprefix("response.") for x in events]
  deltas = [x.delta for x in events if x.type == "response.output_text.delta"]
  begin = ["created", "in_progress", "output_item.added", "content_part.added"]
  end = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
  assert kinds == [*begin, *["output_text.delta"] * len(deltas), *end] and len(deltas) > 1
  assert "".join(deltas) == whole.output_text == events[-1].response.output_text
  assert [x.sequence_number for x in events] == list(range(len(events)))
  assert events[-1].response.usage == whole.usage


def test_an_answer_follows_its_schema(client):
  form = {"type": "json_schema", "name": "pet", "schema": {"enum": ["cat", "dog"]}}
  options = {"model": NAME, "input": "the", "text": {"format": form}, **GREEDY}
  found = client.responses.create(**options)
  assert json.loads(found.output_text) in ("cat", "dog") and found.status == "completed"
  with client.responses.stream(**options) as stream:  # the client puts the events together
    assert stream.get_final_response().output_text == found.output_text


def test_logprobs(client):
  options = {"model": NAME, "input": "the cat", "max_output_tokens": NEW, "top_logprobs": 2}
  own = client.chat.completions.create(
    model=NAME, messages=[USER], max_tokens=NEW, logprobs=True, top_logprobs=2, **GREEDY
  ).choices[0].logprobs.content  # fmt: skip
  options |= {"include": ["message.output_text.logprobs"], **GREEDY}
  said = client.responses.create(**options).output[0].content[0].logprobs
  assert [x.logprob for x in said] == [x.logprob for x in own]
  parts = client.responses.create(stream=True, **options)
  came = [y for x in parts if x.type == "response.output_text.delta" for y in x.logprobs]
  assert [x.logprob for x in came] == pytest.approx([x.logprob for x in own], abs=2e-5)


def test_functions_are_called(client, model, engine, monkeypatch):
  monkeypatch.setattr(engine.decoder, "model", dataclasses.replace(model, template=CALLING))
  tool = {"type": "function", **CALLED["function"]}
  options = {"model": NAME, "input": "the", "tools": [tool], "max_output_tokens": 40, **GREEDY}
  for choice in ("required", {"type": "function", "name": "pet"}):
    (call,) = client.responses.create(tool_choice=choice, **options).output
    assert (call.type, call.name) == ("function_call", "pet") and call.call_id
    assert json.loads(call.arguments)["kind"] in ("cat", "dog")
    events = list(client.responses.create(tool_choice=choice, stream=True, **options))
    (done,) = [x for x in events if x.type == "response.function_call_arguments.done"]
    assert done.arguments == call.arguments and events[-1].type == "response.completed"
  told = [
    {"role": "user", "content": "the"},
    {"type": "function_call", "call_id": "1", "name": "pet", "arguments": '{"kind": "cat"}'},
    {"type": "function_call_output", "call_id": "1", "output": "ü"},
  ]
  found = client.responses.create(model=NAME, input=told, max_output_tokens=5, **GREEDY)
  text = specjax.generate(
    model, ["user theassistant petsays ü"], verifier="target_only", max_new_tokens=5
  )[0].text  # fmt: skip
  assert found.output_text == text


def test_instructions_are_the_system(client, model, engine, monkeypatch):
  monkeypatch.setattr(engine.decoder, "model", dataclasses.replace(model, template=CALLING))
  told = [{"role": "system", "content": "dog"}, USER]
  found = client.responses.create(
    model=NAME, input="the cat", instructions="dog", max_output_tokens=NEW, **GREEDY
  )
  assert found.output_text == chat(client, told, **GREEDY)


KEPT = "must be left out: nothing is kept here between requests, got"
WRONG = [
  ({"previous_response_id": "resp_1"}, f"`previous_response_id` {KEPT} 'resp_1'."),
  ({"store": True}, f"`store` {KEPT} True."), ({"background": True}, f"`background` {KEPT} True."),
  ({"conversation": "c"}, f"`conversation` {KEPT} 'c'."),
  ({"truncation": "auto"}, "`truncation` must be 'disabled', or left out, got 'auto'."),
  ({"input": 7}, "`input` must be text, or a list of messages"),
  ({"input": [{"type": "item_reference", "id": "x"}]}, "`input[0].type` must be message"),
  ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "of type input_text"),
  ({"input": [{"role": "pope", "content": "x"}]}, "role='pope'"),
  ({"max_output_tokens": 0}, "`max_output_tokens` must be between 1 and 2147483647, got 0."),
  ({"tools": [{"type": "web_search"}]}, "`tools[0]` must be an object of type function"),
  ({"include": ["file_search_call.results"]}, "`include` must be a list of 'message.output_text"),
  ({"messages": []}, "`field` must be one of include, input"),
  ({"instructions": 1}, "`instructions` must be text, got 1."),
  ({"text": 1}, "`text` must be an object with a format, got 1."),
  ({"temperature": -1}, "`temperature` must be at least 0 (0 is greedy), got -1."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[str(x[0])[:40] for x in WRONG])
def test_bad_requests_are_refused(port, change, words):
  status, said = get(port, "/v1/responses", json.dumps({"input": "the"} | change).encode())
  assert status == 400 and says(said["error"]["message"], words)
  assert said["error"]["param"] in (None, *change)


def test_an_error_is_the_last_event(client, engine, monkeypatch):
  def breaks(*_):
    raise MemoryError

  monkeypatch.setattr(engine.decoder, "advance", breaks)
  with pytest.raises(openai.APIError, match="a round has failed"):
    for event in client.responses.create(model=NAME, input="the", stream=True):
      if event.type == "error":
        raise openai.APIError(event.message, request=None, body=None)
