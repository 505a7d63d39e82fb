"""An engine gives each request what a decoder of its own gives, however requests come and go."""

import dataclasses
import itertools
import threading

import jax.numpy as jnp
import pytest
from test_conversation import METHODS, MODEL, NEAR

from specjax import Decoder, speculate
from specjax.decoding.engine import Busy, Closed, Engine

PLAIN = {"temperature": 0.0}
# (prompt, budget, what it asks for)
ASKED = [
  ([1, 2, 3, 1, 2, 3, 1], 12, PLAIN),
  ([4], 3, {"temperature": 0.8, "seed": 5}),
  ([5, 6] * 20, 5, {"temperature": 1.3, "seed": 6, "top_k": 4}),
  ([7, 8, 9], 1, PLAIN),
  ([4], 20, {"temperature": 0.8, "seed": 5}),
  ([5, 6] * 20, 15, PLAIN),
  ([2, 2, 5], 9, {"temperature": 0.9, "seed": 7, "top_p": 0.7}),
  ([3] * 9, 14, {"temperature": 0.9, "seed": 7, "min_p": 0.1}),
]


def alone(prompt, budget, asked, drafter="none", **options):
  return Decoder(MODEL, drafter, **options, **asked)([prompt], budget)[0]


@pytest.fixture(scope="module")
def expected():
  """What plain decoding says to each, with its own rule where it is greedy."""
  return [alone(*request).tokens for request in ASKED]


@pytest.fixture(scope="module")
def decoder():
  return Decoder(MODEL, "prompt_lookup-4", "target_only", batch=2)


@pytest.fixture
def engine(decoder):
  with Engine(decoder, rounds=2, queue=20) as engine:
    yield engine


@pytest.mark.full(but=["prompt_lookup", "aggressive"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "penalties"])
def test_requests_are_decoded_as_alone(name, expected):
  make, options = METHODS[name]
  options = {k: v for k, v in options.items() if k not in ("verifier", "batch")}
  decoder = Decoder(MODEL, make(), "target_only", batch=3, **options)
  with Engine(decoder, rounds=3, queue=20) as engine:
    tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
    assert [ticket.wait() for ticket in tickets] == expected
    assert all(0 < t.forwards <= len(t.tokens) and t.reason == "length" for t in tickets)


def test_neighbours_and_the_time_of_admission_do_not_matter(engine, expected):
  for first in range(3):  # each request at another time, among others
    order = [*range(first, len(ASKED)), *range(first)]
    tickets = {}
    for i in order:
      prompt, budget, asked = ASKED[i]
      tickets[i] = engine.submit(prompt, budget, **asked)
      next(iter(tickets[i]))
    assert [tickets[i].wait() for i in range(len(ASKED))] == expected


@pytest.mark.full
def test_a_rule_of_the_decoders_own():
  with Engine(Decoder(MODEL, NEAR, "block", batch=2)) as engine:
    tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
    for ticket, (prompt, budget, asked) in zip(tickets, ASKED, strict=True):
      assert ticket.wait() == alone(prompt, budget, asked, NEAR, verifier="block").tokens


def test_a_request_without_settings_has_the_decoders(expected):
  prompt, budget, asked = ASKED[6]
  with Engine(Decoder(MODEL, **asked)) as engine:
    assert engine.submit(prompt, budget).wait() == expected[6]
    (_, other) = Decoder(MODEL, **asked)([[1], prompt], budget)
    assert engine.submit(prompt, budget, number=1).wait() == other.tokens != expected[6]


def test_nothing_is_compiled_for_a_request(engine):
  engine.submit([1], 2, temperature=0.5, top_k=3).wait()
  compiled = speculate.compiled_start._cache_size(), speculate.compiled_advance._cache_size()
  for prompt, budget, asked in ASKED:
    if len(prompt) <= engine.lengths[0]:
      engine.submit(prompt, budget, **asked, stop=[3]).wait()
  assert compiled == (
    speculate.compiled_start._cache_size(), speculate.compiled_advance._cache_size(),
  )  # fmt: skip


def test_pieces_come_while_it_decodes(engine, expected):
  prompt, budget, asked = ASKED[4]
  told = []
  ticket = engine.submit(prompt, budget, **asked, tell=lambda: told.append(1))
  pieces = list(ticket)
  assert len(pieces) > 2 and all(pieces)
  assert [*itertools.chain(*pieces)] == ticket.tokens == expected[4]
  engine.close()
  assert len(told) == len(pieces) + 1
  assert list(ticket) == [] and ticket.ended


def test_a_stop_id_of_its_own_ends_a_text(engine, expected):
  prompt, budget, asked = ASKED[4]
  end = expected[4][8]
  place = expected[4].index(end)
  ticket = engine.submit(prompt, budget, **asked, stop=[end])
  assert ticket.wait() == expected[4][: place + 1] and ticket.reason == "stop"
  assert engine.submit(prompt, budget, **asked).wait() == expected[4]


def test_a_stop_token_of_the_decoder_ends_a_text(expected):
  end = expected[0][4]
  place = expected[0].index(end)
  with Engine(Decoder(MODEL, stop=[end])) as engine:
    ticket = engine.submit(*ASKED[0][:2])
    assert ticket.wait() == expected[0][: place + 1] and ticket.reason == "stop"


class Gate:
  """Keeps an engine's thread at the first piece of a request until it is opened."""

  def __init__(self):
    self.reached, self.open = threading.Event(), threading.Event()

  def __call__(self):
    self.reached.set()
    assert self.open.wait(30)


def test_a_cancelled_request_frees_its_row(expected):
  prompt, budget, asked = ASKED[4]
  with Engine(Decoder(MODEL, "none", "target_only"), rounds=1) as engine:
    gate = Gate()
    long = engine.submit([1], 100, tell=gate)
    assert gate.reached.wait(30)
    waiting, next_one = engine.submit([2], 100), engine.submit(prompt, budget, **asked)
    assert engine.load == (1, 2)
    waiting.cancel()
    assert waiting.wait() == [] and waiting.reason == "cancelled" and engine.load == (1, 1)
    long.cancel()
    gate.open.set()
    assert next_one.wait() == expected[4] and next_one.reason == "length"
    assert long.reason == "cancelled" and len(long.tokens) <= 2
    long.cancel()
    assert long.reason == "cancelled"


def test_a_full_queue_takes_nothing(decoder):
  with Engine(decoder, queue=1) as engine:
    gate = Gate()
    engine.submit([1], 100, tell=gate)
    assert gate.reached.wait(30)
    others = [engine.submit([2], 3), engine.submit([3], 3)]
    with pytest.raises(Busy, match=r"^the queue is full: 2 requests wait; try again later\.$"):
      engine.submit([4], 3)
    gate.open.set()
    assert [len(ticket.wait()) for ticket in others] == [3, 3]
    assert len(engine.submit([4], 3).wait()) == 3


@pytest.mark.parametrize("finish", [True, False])
def test_a_closed_engine(decoder, finish):
  engine, gate = Engine(decoder), Gate()
  tickets = [engine.submit([1], 30, tell=gate), *(engine.submit([2], 30) for _ in range(4))]
  assert gate.reached.wait(30)
  closing = threading.Thread(target=engine.close, args=(finish,))
  closing.start()
  while not engine._finishing:
    pass
  gate.open.set()
  closing.join(30)
  assert not closing.is_alive() and not engine._thread.is_alive()
  for ticket in tickets:
    assert len(ticket.wait()) == 30 if finish else ticket.reason == "cancelled"
  with pytest.raises(Closed, match="the engine is closed"):
    engine.submit([1], 3)
  engine.close()


def test_a_request_that_fails_fails_alone(expected):
  own = MODEL.params["params"]
  broken = own["embedding"].at[11].set(jnp.nan)
  params = {"params": {**own, "embedding": broken, "lm_head": own["embedding"]}}
  config = dataclasses.replace(MODEL.config, tied=False)
  model = dataclasses.replace(MODEL, config=config, params=params)
  with Engine(Decoder(model, batch=2)) as engine:
    good, bad = engine.submit(*ASKED[0][:2]), engine.submit([1, 11], 5)
    with pytest.raises(FloatingPointError, match="became NaN after 0 new tokens"):
      bad.wait()
    assert bad.reason is None and bad.ended
    assert good.wait() == expected[0]


def test_what_breaks_the_loop_ends_every_request(decoder, monkeypatch):
  def breaks(*_):
    raise MemoryError("no room")

  monkeypatch.setattr(decoder, "advance", breaks)
  with Engine(decoder) as engine:
    tickets = [engine.submit([1], 3) for _ in range(2)]
    for ticket in tickets:
      with pytest.raises(MemoryError, match="no room"):
        ticket.wait()
    engine._thread.join(30)
    with pytest.raises(Closed):
      engine.submit([1], 3)


@pytest.mark.parametrize("name", ["none", "aggressive", "rapid"])
def test_prompts_are_padded_to_few_lengths(name):
  """What `aggressive` copies from is as long as the padded prompt."""
  with Engine(Decoder(MODEL, METHODS[name][0]())) as engine:
    lengths = {"none": [32, 64, 128, 160], "aggressive": [160], "rapid": engine.lengths}
    assert engine.lengths == lengths[name] and engine.lengths[-1] == 160


@pytest.mark.parametrize("wrong, message", [
  ({"prompt": []}, "prompt is empty"),
  ({"prompt": [12]}, r"prompt\[0\]=12"),
  ({"prompt": "text"}, "has no tokenizer"),
  ({"prompt": [1] * 155}, "155 tokens and max_new_tokens=8: together at most 160"),
  ({"max_new_tokens": 0}, "max_new_tokens=0"),
  ({"temperature": -1}, "temperature=-1"),
  ({"top_p": 0}, "top_p=0"),
  ({"top_k": 1.5}, "top_k=1.5"),
  ({"min_p": 1}, "min_p=1"),
  ({"seed": -1}, "seed=-1"),
  ({"number": -1}, "number=-1"),
  ({"stop": [99]}, r"stop\[0\]=99"),
])  # fmt: skip
def test_bad_requests_are_refused(engine, wrong, message):
  with pytest.raises(ValueError, match=message):
    engine.submit(**{"prompt": [1], "max_new_tokens": 8} | wrong)


@pytest.mark.parametrize("wrong, message", [
  ({"max_length": 161}, "max_length=161: accepted is a whole number from 2 to 160"),
  ({"queue": -1}, "queue=-1"),
  ({"rounds": 0}, "rounds=0"),
])  # fmt: skip
def test_bad_limits_are_refused(decoder, wrong, message):
  with pytest.raises(ValueError, match=message):
    Engine(decoder, **wrong)


def test_a_greedy_rule_refuses_to_sample():
  with (
    Engine(Decoder(MODEL)) as engine,
    pytest.raises(ValueError, match=r"temperature=0\.5: accepted is 0 with the rule 'greedy'"),
  ):
    engine.submit([1], 8, temperature=0.5)
