"""An engine over a denoiser gives each request the text that a decoder of its own gives."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import socket
import time
import urllib.request

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sentences import says
from test_block_diffusion_decoder import CONFIG, TOKENIZER, model  # noqa: F401  a fixture
from test_server import asked, client_of, running, until

from specjax import DiffusionDecoder
from specjax.cli.main import main
from specjax.data.tokenizer import END
from specjax.diffusion import denoise, loops
from specjax.names.load import load
from specjax.sampling import SamplingParams
from specjax.serving import denoised
from specjax.serving.blocks import BlockConversation
from specjax.serving.denoised import DenoisedHalf
from specjax.serving.engine import Engine
from specjax.serving.run import warm

HOT = {"temperature": 0.8, "seed": 5}
# (prompt, slots, what it asks for)
ASKED = [
  ("copy : Ann Bob =", 12, {}),
  ("copy : Cy =", 90, HOT),
  ("copy : Dan Cy Bob =", 20, {"temperature": 1.2, "seed": 6, "top_k": 4}),
  ("copy : Bob", 1, {}),
  ("copy : Cy =", 14, HOT | {"number": 2}),
  ("copy : Ann", 60, {"temperature": 0.9, "seed": 7, "top_p": 0.7}),
]
LONG = "copy : Cy =", 50, HOT
# The whole canvas is seen, or blocks; one pass a round, or verified guesses; what depends on rows.
METHODS = {
  "blocks": (6, "threshold-0.3"), "whole": (6, "threshold-0.3/whole"),
  "guesses": (6, "threshold-0.3/guesses-2"), "canvas": (None, "threshold-0.3/fixed-6"),
  "guided": (None, "confidence-2/fixed-6/guidance-1.5/anew"),
}  # fmt: skip


@pytest.fixture
def tiny(model, monkeypatch):  # noqa: F811
  """(block, stop) -> the random model with room for canvases of three lengths."""
  monkeypatch.setattr(denoised, "FIRST", 32)

  def of(block=CONFIG.block_length, stop=()):
    config = dataclasses.replace(CONFIG, max_length=128, block_length=block)
    return dataclasses.replace(model, config=config, stop=stop)

  return of


def alone(network, method, prompt, slots, own):
  own = dict(own)
  first = own.pop("number", 0)
  return DiffusionDecoder(network, method, **own)([prompt], slots, first=first)[0]


@pytest.mark.slow
@pytest.mark.full(but=["blocks", "canvas"])
@pytest.mark.parametrize("name", METHODS)
def test_requests_are_filled_as_alone(tiny, name):
  block, method = METHODS[name]
  network = tiny(block, (TOKENIZER.id(END),))
  expected = [alone(network, method, *request) for request in ASKED]
  with Engine(DiffusionDecoder(network, method, batch=2), rounds=2, queue=20) as engine:
    assert engine.lengths == [32, 64, 128]
    warm(engine)
    programs = denoise.compiled_start, denoise.compiled_advance, denoised._put, loops._over
    compiled = [program._cache_size() for program in programs]
    for first in (0, 4):  # in another order, with other neighbours
      order = [*range(first, len(ASKED)), *range(first)]
      tickets = {i: engine.submit(ASKED[i][0], ASKED[i][1], **ASKED[i][2]) for i in order}
      for i, result in enumerate(expected):
        assert tickets[i].wait() == result.tokens, i
        ends = result.tokens[-1] in network.stop
        assert tickets[i].reason == ("stop" if ends else "length")
        assert name == "whole" or name == "guesses" or tickets[i].passes == result.passes
    assert [program._cache_size() for program in programs] == compiled
  assert {len(result.tokens) for result in expected} > {1}


@pytest.fixture
def engine(tiny):
  decoder = DiffusionDecoder(tiny(), "threshold-0.3", batch=2)
  with Engine(decoder, max_length=64, fewer=[1], rounds=1) as engine:
    yield engine


@pytest.mark.slow
def test_blocks_come_one_by_one_and_rows_are_freed(engine, tiny):
  prompt, slots, own = LONG
  whole = alone(tiny(), "threshold-0.3", *LONG).tokens
  ticket = engine.submit(prompt, slots, **own)
  pieces = list(ticket)
  assert len(pieces) > 3 and [*itertools.chain(*pieces)] == whole
  assert all(len(piece) <= 2 * CONFIG.block_length for piece in pieces)
  # A stop id of its own, and a client that goes away, make room for others.
  end = next(i for i in whole[8:] if i not in whole[:8])
  ended = engine.submit(prompt, slots, **own, stop=[end])
  gone = [engine.submit(prompt, slots, **own | {"seed": seed}) for seed in range(4)]
  last = engine.submit(*ASKED[0][:2])
  for other in gone:
    other.cancel()
  assert ended.wait() == whole[: whole.index(end) + 1] and ended.reason == "stop"
  assert last.wait() == alone(tiny(), "threshold-0.3", *ASKED[0]).tokens
  assert {other.reason for other in gone} == {"cancelled"} and engine.load == (0, 0)
  conversation = BlockConversation(
    DiffusionDecoder(tiny(), "threshold-0.3", temperature=0.8, seed=5)
  )
  said = list(conversation.ask(TOKENIZER.encode(prompt), slots))
  assert [i for piece in said for i in piece.tokens] == whole and len(said) > 3
  assert conversation.ids == [*TOKENIZER.encode(prompt), *whole]


REFUSED = [
  ({"logprobs": True}, "`logprobs` must be false for a denoiser, whose tokens do not come one"),
  ({"presence_penalty": 0.5}, "`presence_penalty` must be 0 for a denoiser, .. got 0.5."),
  ({"frequency_penalty": 1}, "`frequency_penalty` must be 0 for a denoiser, .. got 1."),
  ({"logit_bias": {"1": 2}}, "`logit_bias` must be {} for a denoiser, .. got {'1': 2}."),
  ({"extra_body": {"repetition_penalty": 2}}, "`repetition_penalty` must be 1 for a denoiser"),
  ({"extra_body": {"min_tokens": 2}}, "`min_tokens` must be 0 for a denoiser"),
  ({"response_format": {"type": "json_object"}},
   "`response_format` must be {\"type\": \"text\"} for a denoiser, .. got {'type': 'json_obj"),
  ({"tools": [{"type": "function", "function": {"name": "pet"}}]},
   "`tools` must be [] for a denoiser, whose tokens do not come one after the other, got [{"),
]  # fmt: skip


@pytest.mark.slow
def test_over_http(engine, tiny):
  """Chats and completions, their counts, stops, and what is refused."""
  network = tiny()
  prompt, slots, own = LONG
  result = alone(network, "threshold-0.3", *LONG)
  with running(engine) as (_, port), client_of(port) as client:
    options = {"model": "tiny", "prompt": prompt, "max_tokens": slots, **own}
    found = client.completions.create(**options)
    assert found.choices[0].text == result.text
    assert found.choices[0].finish_reason == "length"
    given, said = len(network.encode(prompt)), len(result.tokens)
    counts = found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens
    assert counts == (given, said, given + said)
    assert found.usage.specjax == {
      "passes": result.passes, "tokens_per_pass": round(said / result.passes, 3),
      "policy": "threshold-0.3",
    }  # fmt: skip
    parts = list(client.completions.create(stream=True, **options))
    assert "".join(part.choices[0].text for part in parts) == result.text and len(parts) > 3
    both = client.completions.create(n=2, **options)  # copies of a prompt, with noise of their own
    copies = DiffusionDecoder(network, "threshold-0.3", **own)([prompt] * 2, slots)
    assert [choice.text for choice in both.choices] == [copy.text for copy in copies]
    words = result.text.split()
    word = next(x for x in words[4:] if x not in words[:4])
    for stream in (False, True):
      cut = client.completions.create(stop=word, stream=stream, **options)
      parts = list(cut) if stream else [cut]
      text = "".join(part.choices[0].text for part in parts)
      assert text == result.text[: result.text.index(word)]
      assert parts[-1].choices[0].finish_reason == "stop"
    chat = {"model": "tiny", "messages": asked("copy : Bob ="), "max_tokens": 9, "temperature": 0}
    expected = DiffusionDecoder(network, "threshold-0.3")([network.chat("copy : Bob =")], 9)[0]
    assert client.chat.completions.create(**chat).choices[0].message.content == expected.text
    for wrong, sentence in REFUSED:
      with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**chat | wrong)
      assert says(error.value.message, sentence), error.value.message
    for wrong, sentence in (
      ({"best_of": 2}, "`best_of` must be 1, which is n, for a denoiser"),
      ({"prompt": [3, network.mask]}, f"`prompt[1]` must be .. the mask, .. got {network.mask}."),
    ):
      with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**options | wrong)
      assert says(error.value.message, sentence), error.value.message
    nothing = {"presence_penalty": 0, "tools": [], "response_format": {"type": "text"}, "n": 1}
    assert client.chat.completions.create(**chat, **nothing).choices[0].message.content
    body = b'{"prompt": "copy", "max_tokens": 60}'
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
      link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                   % (len(body), body))  # fmt: skip
      time.sleep(0.005)  # or the client is gone before its request is read
    until(lambda: engine.load == (0, 0))
    assert client.models.list().data[0].id == "tiny"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
      families = [*text_string_to_metric_families(answer.read().decode())]
    counts = {x.name: x.value for family in families for x in family.samples if not x.labels}
    assert counts["specjax_passes_total"] > 10 < counts["specjax_generated_tokens_total"]


def test_what_an_engine_of_a_denoiser_refuses(tiny, capsys, monkeypatch):
  half = DenoisedHalf(decoder := DiffusionDecoder(tiny(), "klass"), 64)
  monkeypatch.setattr(decoder, "_denoising", decoder._denoising._replace(temperatures=(0.0,)))
  with pytest.raises(ValueError, match=r"`temperature` must be 0 with klass, which is greedy, got"):
    half.checked([3], 3, SamplingParams(1.0), None, None, ())
  with pytest.raises(ValueError, match="`json_schema` must be left out for a denoiser, whose"):
    half.checked([3], 3, half.decoder.sampling, "{}", None, ())
  with pytest.raises(ValueError, match="`prefixes` must be 0 for a denoiser, whose prompts are"):
    Engine(half.decoder, prefixes=10**6)
  with pytest.raises(ValueError, match=r"`pages` must be 0 for a denoiser, .* with a text, got 9"):
    Engine(half.decoder, pages=9)
  for options, sentence in (
    ("--model lists-3m --drafter eagle", "`drafter` must be left out for lists-3m, .. a denoiser"),
    ("--model lists-3m --prefixes 5", "`prefixes` must be left out for lists-3m, .. got 5.0."),
    ("--model lists-3m --pages 9", "`pages` must be left out for lists-3m, .. got 9."),
    ("--model lists-3m --policy oracle", "`policy` must be one of random .. got 'oracle'."),
    ("--policy threshold", "`policy` must be left out for gsm8k-7m, which is causal"),
  ):
    assert main(["serve", "--port", "0", *options.split()]) == 2
    assert says(capsys.readouterr().err, sentence)


@pytest.mark.slow
def test_a_denoiser_of_text_is_served():
  """Questions by 4 clients, greedy and sampled, whole and streamed, against each alone."""
  network, slots = load("gsm8k-7m-denoiser"), 16
  decoder = DiffusionDecoder(network, "threshold-0.7", batch=4)
  questions = [f"A pen costs {n} dollars. What do {n + 2} pens cost?" for n in range(2, 8)]
  settings = [{"temperature": 0.8 * (n % 2), "seed": n} for n in range(len(questions))]
  expected = [
    DiffusionDecoder(network, "threshold-0.7", **own)([network.chat(q)], slots)[0].text
    for q, own in zip(questions, settings, strict=True)
  ]

  def ask(client: openai.OpenAI, i: int) -> str:
    found = client.chat.completions.create(
      model="gsm8k-7m-denoiser", messages=asked(questions[i]), max_tokens=slots,
      stream=i % 4 > 1, **settings[i],
    )  # fmt: skip
    if i % 4 < 2:
      return found.choices[0].message.content
    return "".join(part.choices[0].delta.content or "" for part in found)

  with (
    Engine(decoder, max_length=64) as engine,
    running(engine) as (_, port),
    client_of(port) as client,
    concurrent.futures.ThreadPoolExecutor(4) as pool,
  ):
    every = range(len(questions))
    assert list(pool.map(ask, [client] * len(every), every)) == expected
