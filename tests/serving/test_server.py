"""The server on loopback, asked by OpenAI's own client: its texts are those of a decoder alone."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import httpx2
import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest
import tokenizers
from prometheus_client.parser import text_string_to_metric_families
from sentences import says

import specjax
from specjax.checkpoints import hf
from specjax.cli.main import main
from specjax.data.chat import TEMPLATES
from specjax.data.jinja_chat import JinjaTemplate
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.decoding.texts import Text
from specjax.models.config import Config
from specjax.models.transformer import Transformer
from specjax.serving.engine import Engine
from specjax.serving.run import Uvicorn, bound, configured

NEW, LONG = 12, 31
NAME = "tiny"


def save(path, tokenizer, vocab_size: int) -> str:
  """A random model, whose texts are bytes of every kind."""
  config = Config(vocab_size, 32, 1, 2, 1, 16, 48, max_length=96)
  z = jnp.zeros((1, 2), jnp.int32)
  mask, noise = jnp.ones((1, 2, 2), bool), np.random.default_rng(0)
  shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), z, z, mask)
  params = jax.tree.map(lambda x: noise.normal(size=x.shape).astype(np.float32), shapes)
  template = TEMPLATES["qa"] if tokenizer else None
  hf.save(path, config, params, tokenizer, template=template, dtype=jnp.float32)
  return str(path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  tokenizer = train_bpe(["the cat sat on the mat, Question: Answer: the dog é ü 猫"] * 2, 300)
  return save(tmp_path_factory.mktemp("models") / NAME, tokenizer, tokenizer.vocab_size)


@pytest.fixture(scope="module")
def model(directory):
  return specjax.load(directory)


def decoder_of(model):
  return specjax.Decoder(
    model, "prompt_lookup-4", "target_only", batch=4, processors=["penalties", "json_schema"]
  )


@pytest.fixture(scope="module")
def engine(model):
  with Engine(decoder_of(model), max_length=64, queue=20) as engine:
    yield engine


def until(condition) -> None:
  """Waits until it holds; a test fails where it never does."""
  for _ in range(3000):
    if condition():
      return
    time.sleep(0.01)
  raise AssertionError("it never came true")


@contextlib.contextmanager
def running(engine, seconds: float = 60.0, grace: float = 0.2, **access):
  """A server in a thread; (it, its port)."""
  with bound("127.0.0.1", 0) as place:
    server = Uvicorn(configured(engine, seconds, **access), engine, grace)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    try:
      until(lambda: server.started)
      yield server, place.getsockname()[1]
    finally:
      server.should_exit = True
      thread.join(30)
      assert not thread.is_alive()


def client_of(port: int) -> openai.OpenAI:
  return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def port(engine):
  with running(engine) as (_, port):
    yield port


@pytest.fixture(scope="module")
def client(port):
  with client_of(port) as client:
    yield client


def alone(model, prompt, budget=NEW, **options):
  """What plain decoding says; its one rule is compiled once for all temperatures."""
  options = {"verifier": "target_only", "max_new_tokens": budget} | options
  return specjax.generate(model, [prompt], **options)[0]


def asked(text: str) -> list[dict]:
  return [{"role": "user", "content": text}]


GREEDY = {"temperature": 0.0}
SETTINGS = [GREEDY, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "seed": 4, "top_p": 0.9}]


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "sampled", "top_p"])
def test_a_chat(client, model, settings):
  expected = alone(model, model.chat("the cat"), **settings)
  options = {"model": NAME, "messages": asked("the cat"), **settings}
  found = client.chat.completions.create(max_tokens=NEW, **options)
  assert found.choices[0].message.content == expected.text
  assert found.choices[0].finish_reason == "length" and found.object == "chat.completion"
  length = len(model.chat("the cat"))
  counts = found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens
  assert counts == (length, NEW, length + NEW)
  own = found.usage.specjax
  assert own["tokens_per_pass"] == round(NEW / own["passes"], 3) >= 1
  assert (own["drafter"], own["verifier"]) == ("prompt_lookup-4", "target_only [EXACT]")

  parts = list(client.chat.completions.create(
    max_completion_tokens=NEW, stream=True, stream_options={"include_usage": True}, **options
  ))  # fmt: skip
  assert parts[0].choices[0].delta.role == "assistant" and len({part.id for part in parts}) == 1
  assert parts[-1].choices == [] and parts[-1].usage == found.usage
  assert parts[-2].choices[0].finish_reason == "length"
  texts = [part.choices[0].delta.content or "" for part in parts[:-1]]
  assert "".join(texts) == expected.text and len(texts) >= 3  # a slow reader gets larger pieces


@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "sampled", "top_p"])
def test_a_completion(client, model, settings):
  options = {"model": NAME, "prompt": "the dog", **settings, "max_tokens": LONG}
  expected = alone(model, "the dog", LONG, **settings)
  found = client.completions.create(**options)
  assert found.choices[0].text == expected.text and found.object == "text_completion"
  parts = list(client.completions.create(stream=True, **options))
  assert "".join(part.choices[0].text for part in parts) == expected.text
  assert [part.choices[0].finish_reason for part in parts[-2:]] == [None, "length"]
  ids = client.completions.create(**options | {"prompt": model.encode("the dog")})
  assert ids.choices[0].text == expected.text


def test_parts_of_a_message_are_one_text(client):
  parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
  texts = [
    client.chat.completions.create(
      model=NAME, messages=[{"role": "user", "content": content}], max_tokens=5, **GREEDY
    ).choices[0].message.content
    for content in (parts, "the cat")
  ]  # fmt: skip
  assert texts[0] == texts[1]


FORMS = [
  ({"type": "json_schema", "json_schema": {"name": "pet", "schema": {"enum": ["cat", "dog"]}}},
   {"cat", "dog"}),
  ({"type": "json_schema", "json_schema": {"schema": {
    "type": "object", "properties": {"the": {"type": "boolean"}}, "required": ["the"],
    "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}}},
   None),
]  # fmt: skip


@pytest.mark.parametrize(("form", "accepted"), FORMS, ids=["a word", "an object"])
def test_an_answer_follows_its_schema(client, model, form, accepted):
  options = {"model": NAME, "messages": asked("the cat"), "max_tokens": LONG}
  free = client.chat.completions.create(**options, **GREEDY).choices[0].message.content
  found = client.chat.completions.create(**options, **GREEDY, response_format=form).choices[0]
  assert found.finish_reason == "stop" and free != found.message.content
  said = json.loads(found.message.content)
  assert said in accepted if accepted else [*said] == ["the"]
  own = alone(
    model, model.chat("the cat"), LONG, json_schema=form["json_schema"]["schema"], **GREEDY
  )
  assert found.message.content == own.text
  plain = client.chat.completions.create(**options, **GREEDY, response_format={"type": "text"})
  assert plain.choices[0].message.content == free


def test_several_prompts(client, model):
  prompts = ["the cat", "a dog", "é"]
  decoder = specjax.Decoder(model, verifier="target_only", temperature=0.9, seed=5)
  expected = [result.text for result in decoder(prompts, NEW)]
  options = {"model": NAME, "prompt": prompts, "temperature": 0.9, "seed": 5, "max_tokens": NEW}
  found = client.completions.create(**options)
  assert [choice.text for choice in found.choices] == expected
  assert [choice.index for choice in found.choices] == [0, 1, 2]
  texts = [""] * 3
  for part in client.completions.create(stream=True, **options):
    texts[part.choices[0].index] += part.choices[0].text
  assert texts == expected


def test_stop_words_are_cut_off(client, model):
  whole = alone(model, "the dog", LONG, **GREEDY).text
  word = next(whole[i : i + 2] for i in range(4, LONG) if "\ufffd" not in whole[i : i + 3])
  expected = alone(model, "the dog", LONG, **GREEDY, stop_words=[word, "never said"])
  options = {"model": NAME, "prompt": "the dog", **GREEDY, "max_tokens": LONG}
  for stop in (word, [word, "never said"]):
    found = client.completions.create(stop=stop, **options)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected.text, "stop")
    assert found.usage.completion_tokens == len(expected.tokens) < LONG
    parts = list(client.completions.create(stop=stop, stream=True, **options))
    assert "".join(part.choices[0].text for part in parts) == expected.text
    assert parts[-1].choices[0].finish_reason == "stop"


def test_stop_ids_end_an_answer(client, model, engine, monkeypatch):
  plain = alone(model, "the dog", LONG, **GREEDY)
  token = next(i for i in plain.tokens[5:] if i not in plain.tokens[:5])
  expected = alone(model, "the dog", LONG, **GREEDY, stop=[token])
  options = {"model": NAME, "prompt": "the dog", **GREEDY, "max_tokens": LONG}
  found = client.completions.create(extra_body={"stop_token_ids": [token, token]}, **options)
  assert (found.choices[0].text, found.choices[0].finish_reason) == (expected.text, "stop")
  assert found.usage.completion_tokens == len(expected.tokens) < LONG
  # The same token is no text where it is a special one, and its name ends an answer.
  special = Tokenizer(tokenizers.Tokenizer.from_str(model.tokenizer.inner.to_str()))
  name = special.inner.id_to_token(token)
  special.inner.add_special_tokens([name])
  silent = dataclasses.replace(model, tokenizer=special)
  monkeypatch.setattr(engine.decoder, "model", silent)
  cut = model.decode(expected.tokens[:-1])
  for stop in (name, [name, "never said"]):
    found = client.completions.create(stop=stop, **options)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (cut, "stop")
    parts = list(client.completions.create(stop=stop, stream=True, **options))
    assert "".join(part.choices[0].text for part in parts) == cut
  with pytest.raises(
    openai.BadRequestError,
    match=(
      "`stop` must be text without special tokens, or one special token alone, got "
      r"'Paris©'\."
    ),
  ) as e:
    client.completions.create(stop=f"Paris{name}", **options)
  assert e.value.param == "stop"


@pytest.mark.slow
def test_penalties_of_a_request(client, model):
  """Beside a request without any; a decoder of these alone says the same."""
  options = {"model": NAME, "prompt": "the dog", "max_tokens": LONG, "temperature": 0.9, "seed": 3}
  free = alone(model, "the dog", LONG, temperature=0.9, seed=3)
  first = free.tokens[0]
  own = alone(
    model, "the dog", LONG, temperature=0.9, seed=3,
    processors=[f'penalties-1.2,presence=1.5,frequency=0.5[{{"{first}": -100}}]'],
  )  # fmt: skip
  found = client.completions.create(
    **options, presence_penalty=1.5, frequency_penalty=0.5, logit_bias={str(first): -100},
    extra_body={"repetition_penalty": 1.2},
  )  # fmt: skip
  assert found.choices[0].text == own.text != free.text
  assert client.completions.create(**options).choices[0].text == free.text


def test_no_stop_before_min_tokens(client, model):
  plain = alone(model, "the dog", LONG, **GREEDY)
  end = plain.tokens[2]
  word = next(w for i in range(1, 9) if "\ufffd" not in (w := plain.text[i : i + 1]) != "")
  options = {"model": NAME, "prompt": "the dog", "max_tokens": LONG, **GREEDY}
  for body in ({"stop_token_ids": [end]}, {"stop": word}):
    short = client.completions.create(**options, extra_body=body)
    more = client.completions.create(**options, extra_body=body | {"min_tokens": 20})
    assert short.usage.completion_tokens < 20 <= more.usage.completion_tokens
    assert short.choices[0].finish_reason == "stop"


def plain_log_probs(model, ids, first, temperature=1.0, top_k=0, presence=0.0):
  """f64[new, V] before each token from `first` on: logits of one pass, then a loop over tokens."""
  text, position = np.array([ids], np.int32), np.arange(len(ids), dtype=np.int32)[None]
  mask = np.tril(np.ones((1, len(ids), len(ids)), bool))
  x, _ = Transformer(model.config).apply(model.params, text, position, mask)
  rows = np.asarray(model.target.head(model.params, x), np.float64)[0]
  found = []
  for i in range(first, len(ids)):
    logits = rows[i - 1].copy()
    logits[list(set(ids[first:i]))] -= presence
    logits /= temperature
    if top_k:
      logits[np.argsort(-logits, kind="stable")[top_k:]] = -np.inf
    found.append(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
  return np.array(found)


@pytest.mark.parametrize("settings", [
  GREEDY, {"temperature": 1.4, "top_k": 9, "presence": 1.5, "seed": 3},
], ids=["greedy", "sampled"])  # fmt: skip
def test_logprobs_are_those_of_a_plain_loop(client, model, settings):
  prompt, new = model.chat("the cat"), 40  # more than are scored at once
  presence = settings.get("presence", 0.0)
  top_k = settings.get("top_k", 0)
  found = client.chat.completions.create(
    model=NAME, messages=asked("the cat"), max_tokens=new, logprobs=True, top_logprobs=3,
    temperature=settings["temperature"], seed=settings.get("seed"), presence_penalty=presence,
    extra_body={"top_k": top_k},
  ).choices[0]  # fmt: skip
  said = found.logprobs.content
  ids = [*prompt, *_ids_of(model, said)]
  wanted = plain_log_probs(model, ids, len(prompt), settings["temperature"] or 1.0, top_k, presence)
  assert len(said) == new == len(wanted)
  own = wanted[np.arange(new), ids[len(prompt) :]]
  np.testing.assert_allclose([x.logprob for x in said], own, atol=2e-5)
  for one, row in zip(said, wanted, strict=True):
    best = [x.logprob for x in one.top_logprobs]
    np.testing.assert_allclose(best, np.sort(row)[::-1][:3], atol=2e-5)
  assert b"".join(bytes(x.bytes) for x in said).decode(errors="replace") == found.message.content


def _ids_of(model, said) -> list[int]:
  """The ids of scored tokens, by their bytes."""
  of = {b: i for i, b in reversed([*enumerate(model.tokenizer.spoken_bytes(300))]) if b}
  return [of[bytes(x.bytes)] for x in said]


def test_a_completion_with_its_prompt_is_scored(client, model):
  """As lm-evaluation-harness asks for it."""
  ids = model.encode("the cat sat on the dog")
  found = client.completions.create(
    model=NAME, prompt=[ids], max_tokens=1, logprobs=1, echo=True, seed=1234, **GREEDY
  )
  (choice,) = found.choices
  (new,) = alone(model, ids, 1, **GREEDY).tokens
  wanted = plain_log_probs(model, [*ids, new], 1)
  own = wanted[np.arange(len(ids)), [*ids[1:], new]]
  assert choice.logprobs.token_logprobs[0] is None is choice.logprobs.top_logprobs[0]
  np.testing.assert_allclose(choice.logprobs.token_logprobs[1:], own, atol=2e-5)
  for row, best in zip(wanted, choice.logprobs.top_logprobs[1:], strict=True):
    np.testing.assert_allclose(max(best.values()), row.max(), atol=2e-5)
  assert choice.text == model.decode([*ids, new]) and len(choice.logprobs.tokens) == len(ids) + 1
  assert [choice.text.find(x, at) for x, at in zip(
    choice.logprobs.tokens[:-1], choice.logprobs.text_offset, strict=False)
  ] == choice.logprobs.text_offset[:-1]  # fmt: skip


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_in_a_stream_are_those_of_the_whole(client, echo):
  options = {"model": NAME, "prompt": "the cat", "max_tokens": NEW, "logprobs": 2, **GREEDY}
  whole = client.completions.create(echo=echo, **options).choices[0].logprobs
  parts = client.completions.create(echo=echo, stream=True, **options)
  came = [p.choices[0].logprobs for p in parts if p.choices[0].logprobs]
  assert len(came) > 1
  for field in ("tokens", "text_offset"):
    assert [y for x in came for y in getattr(x, field)] == getattr(whole, field)
  for field in ("token_logprobs", "top_logprobs"):
    found, wanted = [y for x in came for y in getattr(x, field)], getattr(whole, field)
    assert [x is None for x in found] == [x is None for x in wanted]
    for x, y in zip(found, wanted, strict=True):
      assert x is None or x == pytest.approx(y, abs=2e-5)


def test_logprobs_of_a_chat_in_a_stream(client):
  options = {"model": NAME, "messages": asked("the cat"), "max_tokens": NEW, "logprobs": True}
  whole = client.chat.completions.create(**options, **GREEDY).choices[0].logprobs.content
  parts = client.chat.completions.create(stream=True, **options, **GREEDY)
  came = [x for p in parts if p.choices[0].logprobs for x in p.choices[0].logprobs.content]
  assert [x.bytes for x in came] == [x.bytes for x in whole]
  assert [x.logprob for x in came] == pytest.approx([x.logprob for x in whole], abs=2e-5)


def test_the_likeliest_of_several_are_shown(client):
  options = {"model": NAME, "prompt": ["the cat", "a dog"], "max_tokens": NEW, "seed": 5}
  every = client.completions.create(n=5, logprobs=0, temperature=0.9, **options)
  best = client.completions.create(n=2, best_of=5, temperature=0.9, **options)
  assert best.usage.completion_tokens == every.usage.completion_tokens == 10 * NEW
  expected = []
  for first in (0, 5):
    own = every.choices[first : first + 5]
    own.sort(key=lambda x: np.mean(x.logprobs.token_logprobs), reverse=True)
    expected += [x.text for x in own[:2]]
  assert [x.text for x in best.choices] == expected
  with pytest.raises(openai.BadRequestError, match="`best_of` must be 1, which is n, in a stream"):
    client.completions.create(best_of=2, stream=True, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(client, model, stream):
  """They are what a decoder says to as many copies of the prompts; `echo` is before each."""
  prompts, n = ["the cat", "a dog"], 3
  decoder = specjax.Decoder(model, verifier="target_only", temperature=0.9, seed=5)
  copies = [p for p in prompts for _ in range(n)]
  expected = [p + r.text for p, r in zip(copies, decoder(copies, NEW), strict=True)]
  options = {"model": NAME, "prompt": prompts, "temperature": 0.9, "seed": 5, "max_tokens": NEW}
  found = client.completions.create(n=n, echo=True, stream=stream, **options)
  texts = [""] * len(copies)
  for part in found if stream else [found]:
    for choice in part.choices:
      texts[choice.index] += choice.text
  assert texts == expected and len({*texts}) > len(prompts)
  if not stream:
    given = sum(len(model.encode(p)) for p in prompts)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (given, 6 * NEW)


# Of clients that name what they do not ask for.
NEUTRAL = [
  {"n": 1, "best_of": 1, "logit_bias": {}, "logprobs": False, "top_logprobs": 0, "tools": []},
  {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0},
  {"stop": None, "tools": None, "tool_choice": "none", "logit_bias": None, "suffix": None},
  {"stop": [], "stop_token_ids": [], "tool_choice": "auto", "parallel_tool_calls": True},
  {"user": "x", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "seed": None},
  {"top_k": -1, "top_p": 1, "min_p": 0, "skip_special_tokens": True, "ignore_eos": False},
  {"response_format": {"type": "text"}, "echo": False, "stream_options": {}, "seed": -1},
  {"use_beam_search": False, "length_penalty": 1.0, "include_stop_str_in_output": False},
  {"max_tokens": None, "max_completion_tokens": NEW}, {"max_completion_tokens": NEW},
]  # fmt: skip


@pytest.mark.parametrize("fields", NEUTRAL, ids=lambda x: ", ".join(x)[:40])
@pytest.mark.parametrize("chat", [True, False])
def test_what_asks_for_nothing_changes_nothing(port, model, fields, chat):
  expected = alone(model, model.chat("the cat") if chat else "the cat", **GREEDY).text
  path, named = (
    ("/v1/chat/completions", {"messages": asked("the cat")}) if chat
    else ("/v1/completions", {"prompt": "the cat"})
  )  # fmt: skip
  body = named | GREEDY | {"max_tokens": NEW} | fields
  status, found = get(port, path, json.dumps(body).encode())
  assert status == 200, found
  (choice,) = found["choices"]
  assert (choice["message"]["content"] if chat else choice["text"]) == expected


def test_values_that_have_a_meaning_of_their_own(client, model):
  options = {"model": NAME, "prompt": "the dog", "max_tokens": NEW, "temperature": 1.0}

  def text(**more):
    return client.completions.create(**options, **more).choices[0].text

  greedy = alone(model, "the dog", **GREEDY).text
  assert text(top_p=0) == text(top_p=0.0, seed=4) == text(extra_body={"min_p": 1}) == greedy
  assert text(seed=-2) == text(seed=-2) == text(seed=2**32 - 2) != greedy
  assert len({text(seed=-1) for _ in range(4)}) > 1
  assert text(seed=3, extra_body={"top_k": -1}) == text(seed=3)


ROLES = JinjaTemplate(
  "{% for m in messages %}{% if m.role == 'system' %}S {{ m.content | trim }}\n"
  "{% elif m.role in ['user', 'assistant'] %}{{ m.name or m.role }} {{ m.content }}\n{% endif %}"
  "{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)
TOLD = [{"role": "system", "content": "be kind"}, *asked("the cat")]


def test_a_developer_is_the_system(client, model, engine, monkeypatch):
  own = dataclasses.replace(model, template=ROLES)
  monkeypatch.setattr(engine.decoder, "model", own)
  text = "S be kind\nuser the cat\nassistant"
  assert own.chat(TOLD) == model.encode(text)
  options = {"model": NAME, "max_tokens": NEW, **GREEDY}
  for role in ("system", "developer"):
    messages = [{"role": role, "content": "be kind"}, *asked("the cat")]
    found = client.chat.completions.create(messages=messages, **options).choices[0].message.content
    assert found == alone(model, text, **GREEDY).text
  messages = [
    {**asked("the cat")[0], "name": "Ann"},
    {"role": "assistant", "content": None, "tool_calls": [], "refusal": None}, *asked("a dog"),
  ]  # fmt: skip
  found = client.chat.completions.create(messages=messages, **options).choices[0].message.content
  text = "Ann the cat\nassistant \nuser a dog\nassistant"
  assert found == alone(model, text, **GREEDY).text
  for role in ("pope", "tool", "function", "", "System"):
    messages = [{"role": role, "content": "be kind"}, *asked("the cat")]
    with pytest.raises(openai.BadRequestError) as error:
      client.chat.completions.create(messages=messages, **options)
    assert error.value.param == "messages" and f"messages[0]: role={role!r}" in error.value.message


@pytest.mark.parametrize("size", [1, 2, 5, 50])
def test_a_text_in_pieces(model, size):
  """Nothing that was shown is taken back, whatever the pieces are."""
  ids = alone(model, "the dog", LONG, temperature=1.3, seed=8).tokens + model.encode(
    "猫 é the catX"
  )
  whole = model.decode(ids)
  for words in ((), ("catX",), ("at", "the"), ("never",), (whole[6:8].strip("\ufffd") or "e",)):
    parts = [model.decode(ids[: n + 1]).rstrip("\ufffd") for n in range(len(ids))]
    first = next((n + 1 for n, part in enumerate(parts) if any(w in part for w in words)), None)
    said = model.decode(ids[:first])
    expected = said[: min((said.find(w) for w in words if w in said), default=None)]
    text, shown = Text(model, words), ""
    for i in range(0, len(ids), size):
      shown += text.add(ids[i : i + size])
      assert expected.startswith(shown) and shown == text.shown
    assert shown + text.end() == text.shown == expected
    assert text.stopped == (first is not None) and len(text.ids) == (first or len(ids))


def test_requests_that_name_no_seed_differ(client):
  texts = {
    client.completions.create(model=NAME, prompt="the").choices[0].text for _ in range(4)
  }  # fmt: skip
  assert len(texts) > 1


def test_the_model_and_the_health(client, port):
  (card,) = client.models.list().data
  assert card.id == NAME == client.models.retrieve(NAME).id and card.max_length == 64
  with pytest.raises(openai.NotFoundError):
    client.models.retrieve("gpt-5")
  assert get(port, "/health")[1] == {"status": "ok", "running": 0, "waiting": 0}


def get(port: int, path: str, body: bytes | None = None):
  """(status, what JSON says)."""
  with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
    kind = "GET" if body is None else "POST"
    head = f"{kind} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += "" if body is None else f"Content-Length: {len(body)}\r\n"
    link.sendall(head.encode() + b"\r\n" + (body or b""))
    answer = b"".join(iter(lambda: link.recv(65536), b""))
  head, _, said = answer.partition(b"\r\n\r\n")
  return int(head.split()[1]), json.loads(said)


@pytest.mark.parametrize(("asking", "ids"), [
  ({"prompt": "the cat é"}, lambda model: model.encode("the cat é")),
  ({"messages": asked("the cat"), "model": NAME}, lambda model: model.chat("the cat")),
])  # fmt: skip
def test_texts_to_ids_and_back(port, model, asking, ids):
  wanted = ids(model)
  status, found = get(port, "/tokenize", json.dumps(asking).encode())
  assert (status, found) == (200, {"count": len(wanted), "max_model_len": 64, "tokens": wanted})
  body = json.dumps({"tokens": wanted}).encode()
  assert get(port, "/detokenize", body) == (200, {"prompt": model.decode(wanted)})


@pytest.mark.parametrize(("path", "body", "status", "words"), [
  ("/tokenize", {}, 400, "the request has either 'prompt' or 'messages'."),
  ("/tokenize", {"prompt": [1]}, 400, "`prompt` must be text, got [1]."),
  ("/tokenize", {"prompt": "x", "truncate": 1}, 400,
   "`field` must be one of messages, model, prompt, got 'truncate'."),
  ("/tokenize", {"prompt": "x", "model": "gpt-5"}, 404, "`model` must be 'tiny', got 'gpt-5'."),
  ("/detokenize", {}, 400, "the request lacks 'tokens'."),
  ("/detokenize", {"tokens": [10**6]}, 400, "`tokens[0]` must be between 0 and 290, got 1000000."),
  ("/detokenize", [], 400, "`request` must be a JSON object, got []."),
])  # fmt: skip
def test_bad_tokens_are_refused(port, path, body, status, words):
  found, said = get(port, path, json.dumps(body).encode())
  assert found == status and says(said["error"]["message"], words)


def scraped(port: int) -> dict[str, float]:
  with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
    assert answer.headers["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.read().decode())
  return {
    "".join([sample.name, *sample.labels.values()]): sample.value
    for family in families for sample in family.samples
  }  # fmt: skip


def test_metrics_count_what_is_answered(engine, client, port, model):
  before = scraped(port)
  found = client.completions.create(model=NAME, prompt="the dog", max_tokens=NEW, n=2, **GREEDY)
  with pytest.raises(openai.BadRequestError):
    client.completions.create(model=NAME, prompt="the dog", max_tokens=0)
  until(lambda: scraped(port).get("specjax_requests_totallength", 0)
                == before.get("specjax_requests_totallength", 0) + 2)  # fmt: skip
  after = scraped(port)
  gained = {name: value - before.get(name, 0) for name, value in after.items()}
  assert gained["specjax_generated_tokens_total"] == 2 * NEW
  assert gained["specjax_prompt_tokens_total"] == 2 * len(model.encode("the dog"))
  assert gained["specjax_passes_total"] == found.usage.specjax["passes"]
  assert gained["specjax_passes_total"] + gained["specjax_accepted_tokens_total"] >= 2 * NEW
  assert 0 <= gained["specjax_accepted_tokens_total"] <= gained["specjax_drafted_tokens_total"]
  assert gained["specjax_time_to_first_token_seconds_count"] == 2
  assert gained["specjax_request_seconds_sum"] >= gained["specjax_time_to_first_token_seconds_sum"]
  assert gained["specjax_refused_total400"] == 1
  drafts = [gained.get(f"specjax_drafts_total{length}", 0) for length in range(4)]
  assert sum(drafts) == gained["specjax_passes_total"]
  for what, total in (("drafted", "drafted_tokens"), ("accepted", "accepted_tokens")):
    places = [gained[f"specjax_{what}_at_total{place}"] for place in (1, 2, 3)]
    assert sum(places) == gained[f"specjax_{total}_total"] and places == sorted(places)[::-1]
  assert gained["specjax_drafted_at_total3"] == drafts[3]
  with kept_busy(engine, 1):
    busy = scraped(port)
    assert (busy["specjax_running"], busy["specjax_waiting"]) == engine.load


@pytest.mark.slow
def test_a_prompt_that_begins_alike_is_read_once(model):
  prompt = "the cat sat on the mat " * 12
  with Engine(decoder_of(model), prefixes=10**6) as engine, running(engine) as (_, port):
    with client_of(port) as client:
      for more, reused in (("dog", 0), ("dog", 64), ("cat", 64)):
        found = client.completions.create(
          model=NAME, prompt=prompt + more, max_tokens=NEW, **GREEDY
        )  # fmt: skip
        assert found.choices[0].text == alone(model, prompt + more, **GREEDY).text
        assert found.usage.prompt_tokens_details.cached_tokens == reused
    assert scraped(port)["specjax_prefix_hits_total"] == 2


# --- Under load


@pytest.mark.slow
def test_two_hundred_requests_of_sixteen_clients(client, model):
  """None is lost, and none is mixed up; more at once than there are rows, with all settings."""
  words = ["the", "cat", "sat", "on", "mat", "dog", "Question", "Answer"]
  requests = [
    (f"{words[i % 8]} {i} {words[i // 8 % 8]}", 3 + i % 9,
     GREEDY if i % 3 == 0 else {"temperature": 1.0, "seed": i}, i % 4 < 2)
    for i in range(200)
  ]  # fmt: skip

  def ask(request):
    prompt, budget, settings, stream = request
    options = {"model": NAME, "prompt": prompt, "max_tokens": budget, **settings}
    if not stream:
      return client.completions.create(**options).choices[0].text
    return "".join(part.choices[0].text for part in client.completions.create(
      stream=True, **options))  # fmt: skip

  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    found = list(pool.map(ask, requests))
  greedy, sampled = (
    specjax.Decoder(model, verifier="target_only", temperature=t) for t in (0.0, 1.0)
  )
  for text, (prompt, budget, settings, _) in zip(found, requests, strict=True):
    decoder = greedy if settings is GREEDY else sampled
    decoder.seed = settings.get("seed", 0)
    assert text == decoder([prompt], budget)[0].text, (prompt, settings)
  assert len(set(found)) > 150


@pytest.mark.slow
def test_clients_that_hang_up(client, port, engine, model):
  options = {"model": NAME, "prompt": "the cat", "max_tokens": 50, **GREEDY}
  body = json.dumps({k: v for k, v in options.items() if k != "model"}).encode()
  head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)

  def leave(i):
    if i % 3 == 0:
      with client.completions.create(stream=True, **options) as stream:
        next(iter(stream))
    else:  # without reading an answer, or before the request is whole
      with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(head + (body if i % 3 == 1 else body[:9]))
        time.sleep(0.005)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(leave, range(24)))
    assert client.completions.create(**options).choices[0].text == alone(
      model, "the cat", 50, **GREEDY).text  # fmt: skip
  until(lambda: engine.load == (0, 0))


@contextlib.contextmanager
def kept_busy(engine, waiting: int):
  """Every row is taken and so many wait; nothing goes on until the end."""
  reached, over = threading.Event(), threading.Event()

  def tell():
    reached.set()
    over.wait(30)

  tickets = [engine.submit([1], 60, tell=tell)]
  assert reached.wait(30)
  tickets += [engine.submit([1], 60) for _ in range(engine.decoder.batch - 1 + waiting)]
  try:
    yield
  finally:
    for ticket in tickets:
      ticket.cancel()
    over.set()


def test_who_reads_slowly_holds_nobody_up(engine, client, port):
  body = b'{"prompt": "the", "max_tokens": 60, "n": 16, "stream": true, "logprobs": 20}'
  with contextlib.closing(socket.socket()) as link:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    link.connect(("127.0.0.1", port))
    link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                 % (len(body), body))  # fmt: skip
    assert link.recv(16)
    found = client.completions.create(model=NAME, prompt="the", **GREEDY)
    assert found.usage.completion_tokens == 16
    until(lambda: engine.load == (0, 0))  # its texts are done though it has not read them


def test_a_broken_round_is_said_and_the_server_goes_on(engine, client, monkeypatch):
  advance = engine.decoder.advance

  def breaks(*arguments):
    monkeypatch.setattr(engine.decoder, "advance", advance)
    raise MemoryError("no room")

  expected = client.completions.create(model=NAME, prompt="the", **GREEDY).choices[0].text
  for stream in (False, True):
    monkeypatch.setattr(engine.decoder, "advance", breaks)
    words = r"a round has failed \(MemoryError\), and with it this answer; try again\."
    with pytest.raises(openai.APIError, match=words):
      list(client.completions.create(model=NAME, prompt="the", stream=stream, **GREEDY))
    found = client.completions.create(model=NAME, prompt="the", **GREEDY)
    assert found.choices[0].text == expected


def test_a_row_is_freed_where_nobody_listens(engine, client, port):
  with kept_busy(engine, 0):
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
      body = b'{"prompt": "the", "max_tokens": 50}'
      link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                   % (len(body), body))  # fmt: skip
      until(lambda: engine.load == (1, engine.decoder.batch))
    until(lambda: engine.load == (1, engine.decoder.batch - 1))


def test_a_full_queue_is_said(engine, client):
  with kept_busy(engine, engine.queue), pytest.raises(openai.RateLimitError) as error:
    client.completions.create(model=NAME, prompt="the")
  assert error.value.code == "queue_full" and "try again later" in error.value.message
  found = client.completions.create(model=NAME, prompt="the", **GREEDY)
  assert found.usage.completion_tokens == 16


def test_time_is_limited(engine):
  with running(engine, seconds=0.2) as (_, port), client_of(port) as client:
    options = {"model": NAME, "prompt": "the"}
    with kept_busy(engine, 0):
      with pytest.raises(openai.InternalServerError) as error:
        client.completions.create(**options)
      assert error.value.status_code == 503 and error.value.code == "timeout"
      with pytest.raises(openai.APIError, match=r"longer than 0\.2 seconds"):
        list(client.completions.create(stream=True, **options))


@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_run_are_cut_at_the_end(model, stream):
  """The server ends, with an answer that would never end by itself."""
  with Engine(decoder_of(model), max_length=64, queue=20) as engine:
    over = threading.Event()
    with running(engine) as (server, port), client_of(port) as client:
      engine.submit([1], 40, tell=lambda: over.wait(30))
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: list(client.completions.create(
          model=NAME, prompt="the", max_tokens=50, stream=stream, **GREEDY)))  # fmt: skip
        until(lambda: sum(engine.load) == 2)
        server.should_exit = True
        until(lambda: engine.closed)
        over.set()
        with pytest.raises(openai.APIError, match="the server ends before the answer does"):
          answer.result(30)


CALLED = {
  "type": "function",
  "function": {
    "name": "pet",
    "parameters": {
      "type": "object",
      "properties": {"kind": {"enum": ["cat", "dog"]}},
      "required": ["kind"],
      "additionalProperties": False,
    },
  },
}
CALLING = JinjaTemplate(
  "{% for t in tools or [] %}{{ t.function.name }} <tool_call>{% endfor %}{% for m in messages %}"
  "{{ 'says' if m.role == 'tool' else m.role }} {{ m.content }}"
  "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
  "{% endfor %}{% if mood %} {{ mood }}{% endif %}"
)


def test_functions_are_called(client, model, engine, monkeypatch):
  monkeypatch.setattr(engine.decoder, "model", dataclasses.replace(model, template=CALLING))
  options = {"model": NAME, "max_tokens": 40, **GREEDY, "tools": [CALLED]}
  create = client.chat.completions.create
  free = create(messages=asked("the cat"), **options).choices[0]
  assert free.message.content == alone(model, "pet <tool_call>user the cat", 40, **GREEDY).text
  assert free.message.tool_calls is None and free.finish_reason == "length"
  for choice in ("required", {"type": "function", "function": {"name": "pet"}}):
    found = create(messages=asked("the cat"), tool_choice=choice, **options).choices[0]
    (call,) = found.message.tool_calls
    assert found.finish_reason == "tool_calls" and found.message.content is None
    assert call.function.name == "pet"
    assert json.loads(call.function.arguments)["kind"] in ("cat", "dog")
  deltas = [
    chunk.choices[0].delta
    for chunk in create(messages=asked("the cat"), tool_choice="required", stream=True, **options)
  ]
  (streamed,) = (delta.tool_calls[0] for delta in deltas if delta.tool_calls)
  same = streamed.function.arguments == call.function.arguments
  assert same and not any(delta.content for delta in deltas)
  told = [*asked("the"), {"role": "assistant", "tool_calls": [call.model_dump()]}]
  told.append({"role": "tool", "content": "cat", "tool_call_id": call.id})
  found = create(
    messages=told, **options, tool_choice="none", extra_body={"chat_template_kwargs": {"mood": "ü"}}
  )
  text = "user theassistant petsays cat ü"
  assert found.choices[0].message.content == alone(model, text, 40, **GREEDY).text


def test_a_key_and_the_pages_that_may_ask(engine):
  page = "https://example.org"
  with running(engine, key="secret", origins=[page]) as (_, port):
    for key, status in (("secret", 200), ("none", 401), (None, 401)):
      headers = {"Origin": page} | ({} if key is None else {"Authorization": f"Bearer {key}"})
      found = httpx2.get(f"http://127.0.0.1:{port}/v1/models", headers=headers)
      assert found.status_code == status
      assert found.headers["access-control-allow-origin"] == page
    assert found.json()["error"]["code"] == "invalid_api_key"
    assert httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
    asking = {"Origin": page, "Access-Control-Request-Method": "POST"}
    for origin, status in ((page, 200), ("https://other.org", 400)):
      found = httpx2.options(
        f"http://127.0.0.1:{port}/v1/chat/completions", headers=asking | {"Origin": origin}
      )
      assert found.status_code == status


@pytest.mark.parametrize(
  "access", [{"key": ""}, {"key": "a b"}, {"key": "ü"}, {"origins": ["example.org"]}]
)
def test_bad_access_is_refused(engine, access):
  with pytest.raises(ValueError, match="must be"):
    configured(engine, 60.0, **access)


# --- What is refused

CHAT = {"messages": asked("the cat"), "max_tokens": 4}
WRONG = [
  ({"model": "gpt-5"}, 404, "`model` must be 'tiny', got 'gpt-5'."),
  ({"messages": []}, 400, "`messages` must be a list of one message or more, got []."),
  ({"messages": "hello"}, 400, "`messages` must be a list of messages, got 'hello'."),
  (
    {"messages": ["hello"]},
    400,
    "`messages[0]` must be an object with role and content, got 'hello'.",
  ),
  (
    {"messages": [{"role": "user"}]},
    400,
    "`messages[0].content` must be text, or a list of parts of type text, got None.",
  ),
  ({"messages": [{"role": "pope", "content": "x"}]}, 400, "role='pope'"),
  ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "parts of type text"),
  ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "without lone surrogates"),
  ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, 400, "tool_calls"),
  ({"messages": [{"role": "user", "content": "x", "audio": {"id": 1}}]}, 400, "not 'audio'"),
  ({"messages": asked("cat " * 90)}, 400, "together at most 64."),
  ({"max_tokens": 60}, 400, "max_tokens=60: together at most 64."),
  ({"max_tokens": 0}, 400, "`max_tokens` must be between 1 and 2147483647, got 0."),
  (
    {"max_tokens": "many"},
    400,
    "`max_tokens` must be a whole number between 1 and 2147483647, got 'many'.",
  ),
  ({"temperature": -1}, 400, "`temperature` must be at least 0 (0 is greedy), got -1."),
  (
    {"temperature": "hot"},
    400,
    "`temperature` must be a finite number at least 0 (0 is greedy), got 'hot'.",
  ),
  (
    {"max_tokens": 4, "max_completion_tokens": 5},
    400,
    "`max_tokens` must be the same as max_completion_tokens, or left out, got 4.",
  ),
  (
    {"max_completion_tokens": 0},
    400,
    "`max_completion_tokens` must be between 1 and 2147483647, got 0.",
  ),
  (
    {"stream_options": {"include_usage": True}},
    400,
    "`stream_options` must be left out without stream=true, got {'include_usage': True}.",
  ),
  (
    {"stream_options": {"include_usage": 1}, "stream": True},
    400,
    "`stream_options['include_usage']` must be true or false, got 1.",
  ),
  (
    {"stop_token_ids": [1, 10**6]},
    400,
    "`stop_token_ids[1]` must be between 0 and 290, got 1000000.",
  ),
  (
    {"stop_token_ids": "x"},
    400,
    "`stop_token_ids` must be a list of token ids from 0 to 290, got 'x'.",
  ),
  (
    {"messages": [{"role": "user", "content": "x", "name": 7}]},
    400,
    "`messages[0].name` must be text, got 7.",
  ),
  ({"messages": [{"role": "developer", "content": "x"}]}, 400, "role='developer'"),
  ({"top_logprobs": 2}, 400, "`top_logprobs` must be 0 without logprobs, got 2."),
  ({"logprobs": True, "top_logprobs": 21}, 400, "`top_logprobs` must be between 0 and 20, got 21."),
  ({"best_of": 2}, 400, "`best_of` must be 1, got 2."),
  ({"repetition_penalty": 0}, 400, "`repetition_penalty` must be above 0 (1 is off), got 0."),
  ({"frequency_penalty": -2.5}, 400, "`frequency_penalty` must be between -2 and 2, got -2.5."),
  ({"min_tokens": 5}, 400, "`min_tokens` must be between 0 and 4 (up to max_tokens), got 5."),
  ({"top_k": -2}, 400, "`top_k` must be between 0 and 2147483647 (0 keeps all), got -2."),
  (
    {"top_k": True},
    400,
    "`top_k` must be a whole number between 0 and 2147483647 (0 keeps all), got True.",
  ),
  ({"seed": -(2**40)}, 400, "`seed` must be between 0 and 4294967295, got -1099511627776."),
  ({"top_p": -0.1}, 400, "`top_p` must be above 0 and at most 1 (1 keeps all), got -0.1."),
  ({"seed": 2**40}, 400, "`seed` must be between 0 and 4294967295, got 1099511627776."),
  ({"seed": 1.5}, 400, "`seed` must be a whole number between 0 and 4294967295, got 1.5."),
  ({"stop": 7}, 400, "`stop` must be a list of texts, got 7."),
  ({"stop": [""]}, 400, "`stop` must be a list of texts that are not empty, got ['']."),
  ({"stop": ["a"] * 17}, 400, "up to 16 texts"),
  ({"stream": 1}, 400, "`stream` must be true or false, got 1."),
  ({"stream_options": 1}, 400, "`stream_options` must be an object with include_usage, got 1."),
  ({"n": 17}, 400, "`n` must be between 1 and 16, got 17."),
  ({"n": True}, 400, "`n` must be a whole number between 1 and 16, got True."),
  ({"echo": True}, 400, "`echo` must be false, got True."),
  ({"logprobs": 3}, 400, "`logprobs` must be true or false, got 3."),
  (
    {"presence_penalty": "x"},
    400,
    "`presence_penalty` must be a finite number between -2 and 2, got 'x'.",
  ),
  ({"logit_bias": {"1": 101}}, 400, "`logit_bias[1]` must be between -100 and 100, got 101."),
  (
    {"logit_bias": {"x": 1}},
    400,
    "a token of logit_bias must be a whole number between 0 and 290, got 'x'.",
  ),
  ({"logit_bias": [1]}, 400, "`logit_bias` must be an object of ids and numbers, got [1]."),
  (
    {"response_format": "json"},
    400,
    "`response_format` must be an object of type text .. got 'json'.",
  ),
  (
    {"response_format": {"type": "json_schema", "json_schema": {"schema": "/etc/passwd"}}},
    400,
    "json_schema with its schema",
  ),
  (
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}},
    400,
    "Invalid type: foo",
  ),
  ({"tools": [{}]}, 400, "`tools[0]` must be an object of type function, got {}."),
  ({"tools": [CALLED]}, 400, "calls no tools"),
  ({"chat_template_kwargs": {"enable_thinking": False}}, 400, "`enable_thinking` must be left out"),
  ({"chat_template_kwargs": 1}, 400, "`chat_template_kwargs` must be an object, got 1."),
  (
    {"drafter": "draft_model[/etc]"},
    400,
    "`field` must be one of chat_template_kwargs, frequency_penalty .. got 'drafter'.",
  ),
]


@pytest.mark.parametrize(("change", "status", "words"), WRONG, ids=[str(x[0])[:40] for x in WRONG])
def test_bad_requests_are_refused(port, change, status, words):
  found, said = get(port, "/v1/chat/completions", json.dumps(CHAT | change).encode())
  sentence = said["error"]["message"]
  assert found == status and says(sentence, words)
  assert sentence.endswith(".") and "\n" not in sentence
  field = said["error"]["param"]
  assert field in (None, *change)


@pytest.mark.parametrize(("prompt", "words"), [
  ("", "prompt is empty"), ([],
   "`prompt` must be text, ids, or a list of 1 to 16 of these, got "
   "[]."), ([[]], "prompt is empty"), ({},
   "`prompt` must be text, ids, or a list of 1 to 16 of these, got {}."),
  ([999], "`prompt[0]` must be between 0 and 290, got 999."), ([1.5],
   "`prompt` must be text, ids, or a list of 1 to 16 of these, got [1.5]."), ([True],
   "`prompt[0]` must be a whole number between 0 and 290, got True."),
  (["a"] * 17, "a list of 1 to 16 of these"), (None, "the request lacks 'prompt'."),
])  # fmt: skip
def test_bad_prompts_are_refused(port, prompt, words):
  status, said = get(port, "/v1/completions", json.dumps({"prompt": prompt}).encode())
  assert status == 400 and says(said["error"]["message"], words)


@pytest.mark.parametrize(("path", "body", "status"), [
  ("/v1/completions", b"[" * 50_000, 400), ("/v1/completions", b"\xff", 400),
  ("/v1/completions", b'{"prompt": "x", "temperature": NaN}', 400), ("/v1/completions", b"1", 400),
  ("/v1/completions", b"x" * 80_000, 413), ("/v1/completions", None, 405),
  ("/v1/../../etc/passwd", None, 404), ("/v1/models/..%2f..%2fetc", None, 404), ("/", None, 404),
])  # fmt: skip
def test_what_is_no_request(port, path, body, status):
  found, said = get(port, path, body)
  assert found == status and said["error"]["message"].endswith(".")


@pytest.mark.parametrize(("arguments", "words"), [
  (["--port", "70000"], "`port` must be between 0 and 65535 (0 is any that is free), got 70000."),
  (["--host", "no.such.place.invalid"],
   "`host` and `port` must be a free address of this machine .. got 'no.such.place.invalid' "
   "and 8000 (Name or service not "),
  (["--port", "0", "--seconds", "0"], "`seconds` must be above 0, got 0.0."),
  (["--port", "0", "--max-length", "97"],
   "`max_length` must be between 2 and 96 (the model's positions), got 97."),
  (["--port", "0", "--queue", "-1"], "`queue` must be between 0 and 2147483647, got -1."),
  (["--port", "0", "--prefixes", "-1"], "`prefixes` must be at least 0, got -1.0."),
  (["--port", "0", "--prefixes", "1", "--drafter", "jacobi-4"],
   "`prefixes` must be 0 with the drafter 'jacobi-4': prompts are then read as a whole, got "
   "1000000."),
  (["--port", "0", "--verifier", "oracle"], "oracle"),
])  # fmt: skip
def test_a_bad_command_is_refused(directory, capsys, arguments, words):
  before = signal.getsignal(signal.SIGTERM)
  assert main(["serve", "--model", directory, *arguments]) == 2
  out, err = capsys.readouterr()
  assert says(err, words) and err.startswith("error: ") and err.count("\n") == 1 and out == ""
  assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_that_is_taken(capsys, port):
  assert main(["serve", "--port", str(port)]) == 2
  assert f"a free address of this machine, got '127.0.0.1' and {port}" in capsys.readouterr().err


def test_a_model_without_a_tokenizer(tmp_path, capsys):
  assert main(["serve", "--model", save(tmp_path / "ids", None, 64), "--port", "0"]) == 2
  assert "`model` must have a tokenizer to be served, got" in capsys.readouterr().err


def test_what_is_not_installed_is_named(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "uvicorn", None)
  monkeypatch.delitem(sys.modules, "specjax.serving.run", raising=False)
  assert main(["serve"]) == 2
  assert capsys.readouterr().err == "error: serve needs uvicorn: pip install specjax[serve].\n"


OPTIONS = ["--drafter", "prompt_lookup-4", "--batch", "4", "--max-length", "64", "--port"]
SIGNALS = pytest.mark.parametrize(
  "kind", [signal.SIGTERM, signal.SIGINT], ids=lambda kind: kind.name
)


@SIGNALS
def test_a_signal_ends_the_server(directory, capsys, kind):
  """It is sent while an answer comes, which goes on to its end."""
  with bound("127.0.0.1", 0) as place:
    port = place.getsockname()[1]
  found = []

  def ask():
    while True:
      try:
        get(port, "/health")
        break
      except OSError:
        time.sleep(0.02)
    with client_of(port) as client, client.completions.create(
      model=NAME, prompt="the", max_tokens=50, stream=True, **GREEDY
    ) as stream:  # fmt: skip
      found.append(next(iter(stream)))
      os.kill(os.getpid(), kind)
      found.extend(stream)

  before = signal.getsignal(kind)
  asking = threading.Thread(target=ask)
  asking.start()
  assert main(["serve", "--model", directory, *OPTIONS, str(port)]) == 0
  asking.join(30)
  assert found[-1].choices[0].finish_reason == "length"
  out, err = capsys.readouterr()
  rule = "with prompt_lookup-4 and target_only [EXACT]"
  assert (out, err) == (f"{NAME} at http://127.0.0.1:{port}/v1, {rule}\n", "")
  assert signal.getsignal(kind) is before


@pytest.mark.full
@SIGNALS
def test_a_signal_ends_the_command(directory, kind, tmp_path):
  command = [sys.executable, "-m", "specjax.cli", "serve", "--model", directory, *OPTIONS, "0"]
  root = str(pathlib.Path(specjax.__file__).parents[1])
  errors = tmp_path / "errors"
  with (
    errors.open("w") as file,
    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, cwd=tmp_path,
                     env=os.environ | {"PYTHONPATH": root}) as process,
  ):  # fmt: skip
    line = process.stdout.readline()
    assert line.startswith("tiny at http://127.0.0.1:"), errors.read_text()
    port = int(line.split("/v1")[0].rpartition(":")[2])
    with client_of(port) as client:
      found = client.completions.create(model=NAME, prompt="the", **GREEDY)
    assert found.usage.completion_tokens == 16
    process.send_signal(kind)
    assert process.wait(30) == 0 and process.stdout.read() == ""
  assert "Traceback" not in errors.read_text() and "ERROR" not in errors.read_text()
