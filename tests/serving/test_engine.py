"""An engine gives each request what a decoder of its own gives, however requests come and go."""

import itertools
import threading

import jax
import pytest
from test_conversation import METHODS, MODEL, NEAR

from specjax import Decoder, speculate
from specjax.serving.engine import Busy, Closed, Engine
from specjax.serving.rows import DecodeRows

PLAIN = {"temperature": 0.0}
END = 2  # a stop token of all decoders here
# (prompt, budget, what it asks for)
ASKED = [
  ([1, 2, 3, 1, 2, 3, 1], 12, PLAIN),
  ([4], 3, {"temperature": 0.8, "seed": 5}),
  ([5, 6] * 9, 5, {"temperature": 1.3, "seed": 6, "top_k": 4}),
  ([7, 8, 9], 1, PLAIN),
  ([4], 20, {"temperature": 0.8, "seed": 5}),
  ([5, 6] * 20, 15, PLAIN),
  ([2, 2, 5], 9, {"temperature": 0.9, "seed": 7, "top_p": 0.7}),
  ([3] * 9, 14, {"temperature": 0.9, "seed": 7, "min_p": 0.1, "typical_p": 0.8}),
]


def alone(prompt, budget, asked, drafter="none", **options):
  return Decoder(MODEL, drafter, stop=[END], **options, **asked)([prompt], budget)[0]


@pytest.fixture(scope="module")
def expected():
  """What plain decoding says to each, with its own rule where it is greedy."""
  return [alone(*request).tokens for request in ASKED]


@pytest.fixture(scope="module")
def decoder():
  return Decoder(MODEL, "prompt_lookup-4", "target_only", batch=2, stop=[END])


@pytest.fixture
def engine(decoder):
  with Engine(decoder, rounds=2, queue=20) as engine:
    yield engine


@pytest.mark.slow
@pytest.mark.full(but=["prompt_lookup"])
@pytest.mark.parametrize(
  "name", [name for name in METHODS if name not in ("penalties", "momentum", "forced")]
)
def test_requests_are_decoded_as_alone(name, expected):
  make, options = METHODS[name]
  options = {k: v for k, v in options.items() if k not in ("verifier", "batch")}
  decoder = Decoder(MODEL, make(), "target_only", batch=2, stop=[END], **options)
  with Engine(decoder, rounds=3, queue=20) as engine:
    tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
    assert [ticket.wait() for ticket in tickets] == expected
    for ticket, (_, budget, _) in zip(tickets, ASKED, strict=True):
      assert 0 < ticket.passes <= len(ticket.tokens) <= budget
      assert ticket.reason == ("stop" if ticket.tokens[-1] == END else "length")
    assert {ticket.reason for ticket in tickets} == {"stop", "length"}


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
def test_the_thread_has_the_mesh(mesh, expected):
  with jax.set_mesh(mesh):
    decoder = Decoder(MODEL.on(mesh), "prompt_lookup-4", "target_only", batch=2, stop=[END])
    with Engine(decoder, queue=20) as engine:
      tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
      assert [ticket.wait() for ticket in tickets] == expected


@pytest.mark.full
def test_a_rule_of_the_decoders_own():
  with Engine(Decoder(MODEL, NEAR, "block", batch=2, stop=[END])) as engine:
    tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
    for ticket, (prompt, budget, asked) in zip(tickets, ASKED, strict=True):
      assert ticket.wait() == alone(prompt, budget, asked, NEAR, verifier="block").tokens


def test_a_request_without_settings_has_the_decoders(expected):
  prompt, budget, asked = ASKED[4]
  own = Decoder(MODEL, "prompt_lookup-4", "target_only", batch=2, stop=[END], **asked)
  with Engine(own) as engine:
    assert engine.submit(prompt, budget).wait() == expected[4]
    (_, other) = Decoder(MODEL, stop=[END], **asked)([[1], prompt], budget)
    assert engine.submit(prompt, budget, number=1).wait() == other.tokens != expected[4]


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


class Gate:
  """Keeps an engine's thread at the first piece of a request until it is opened."""

  def __init__(self):
    self.reached, self.open = threading.Event(), threading.Event()

  def __call__(self):
    self.reached.set()
    assert self.open.wait(30)


def test_a_cancelled_request_frees_its_row(decoder, expected):
  prompt, budget, asked = ASKED[4]
  with Engine(decoder, rounds=1) as engine:
    gate = Gate()
    long = [engine.submit([1], 100, tell=gate)]
    assert gate.reached.wait(30)
    long += [engine.submit([1], 100) for _ in range(decoder.batch - 1)]
    waiting, next_one = engine.submit([2], 100), engine.submit(prompt, budget, **asked)
    running, waits = engine.load
    waiting.cancel()
    assert waiting.wait() == [] and waiting.reason == "cancelled"
    assert running + waits == decoder.batch + 2 and engine.load == (running, waits - 1)
    gate.open.set()
    next(iter(long[-1]))
    for ticket in long:
      ticket.cancel()
    assert next_one.wait() == expected[4] and next_one.reason == "length"
    assert all(len(ticket.wait()) < 100 and ticket.reason == "cancelled" for ticket in long)
    long[0].cancel()
    assert long[0].reason == "cancelled" and engine.load == (0, 0)


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


def test_a_request_that_fails_fails_alone(decoder, expected, monkeypatch):
  advance = decoder.advance

  def breaks(*arguments):  # as if the logits after [1, 11] were NaN
    state = advance(*arguments)
    bad = state.context.tokens[:, 1] == 11
    return state._replace(failed=bad, done=state.done | bad)

  monkeypatch.setattr(decoder, "advance", breaks)
  with Engine(decoder) as engine:
    good, bad = engine.submit(*ASKED[0][:2]), engine.submit([1, 11], 50)
    with pytest.raises(FloatingPointError, match="prompt 0: the logits of random became NaN after"):
      bad.wait()
    assert bad.reason is None and bad.ended and len(bad.tokens) < 50
    assert good.wait() == expected[0]


def test_a_round_that_breaks_ends_the_requests_in_it_alone(decoder, expected, monkeypatch, caplog):
  advance, calls = decoder.advance, []

  def breaks(*arguments):
    calls.append(1)
    if len(calls) == 2:
      raise MemoryError("no room")
    return advance(*arguments)

  monkeypatch.setattr(decoder, "advance", breaks)
  with Engine(decoder, queue=20, rounds=1) as engine:
    gate = Gate()
    first = engine.submit([1], 30, tell=gate)
    assert gate.reached.wait(30)
    others = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
    gate.open.set()
    broken = [first, others[0]]  # that hold the two rows
    for ticket in broken:
      with pytest.raises(MemoryError, match="no room"):
        ticket.wait()
    assert [ticket.wait() for ticket in others[1:]] == expected[1:]
    assert engine.submit(*ASKED[0][:2]).wait() == expected[0] and not engine.closed
  assert "a round has failed" in caplog.text


@pytest.mark.parametrize("what", ["admit", "take"])  # a prompt is read, rows are added
def test_what_breaks_before_a_round_ends_one_request(decoder, expected, monkeypatch, what):
  own = getattr(DecodeRows, what)

  def breaks(*arguments):
    monkeypatch.setattr(DecodeRows, what, own)
    raise MemoryError("no room")

  with Engine(decoder, fewer=[1], queue=20, rounds=1) as engine:
    gate = Gate()
    first = engine.submit([1], 30, tell=gate)
    assert gate.reached.wait(30)
    monkeypatch.setattr(DecodeRows, what, breaks)
    others = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in ASKED]
    gate.open.set()
    ended = [ticket for ticket in (first, *others) if not _answered(ticket)]
    assert 1 <= len(ended) <= 2 and all(isinstance(x.error, MemoryError) for x in ended)
    for ticket, tokens in zip(others, expected, strict=True):
      assert ticket in ended or ticket.tokens == tokens


def _answered(ticket) -> bool:
  try:
    return bool(ticket.wait())
  except MemoryError:
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_where_no_rows_can_be_made_every_request_ends(decoder, monkeypatch):
  started = threading.Event()

  def breaks(*_):
    assert started.wait(30)
    raise MemoryError("no room")

  monkeypatch.setattr(DecodeRows, "__init__", breaks)
  with Engine(decoder) as engine:
    tickets = [engine.submit([1], 3) for _ in range(2)]
    started.set()
    for ticket in tickets:
      with pytest.raises(MemoryError, match="no room"):
        ticket.wait()
    engine._thread.join(30)
    with pytest.raises(Closed):
      engine.submit([1], 3)


@pytest.mark.slow
def test_a_thousand_requests_wait(decoder, expected):
  with Engine(decoder, queue=1000) as engine:
    gate = Gate()
    engine.submit([1], 2, tell=gate)
    assert gate.reached.wait(30)
    tickets = [engine.submit([1 + i % 11], 1 + i % 3, seed=i) for i in range(1000)]
    last = engine.submit([1], 2)  # two rows, and a thousand that wait
    with pytest.raises(Busy):
      engine.submit([1], 2)
    tickets[500].cancel()
    gate.open.set()
    assert [len(x.wait()) for x in tickets[:500]] == [1 + i % 3 for i in range(500)]
    assert all(x.wait() for x in tickets[501:]) and tickets[500].reason == "cancelled"
    assert len(last.wait()) == 2 and engine.load == (0, 0)


@pytest.mark.parametrize("name", ["none", "aggressive"])
def test_prompts_are_padded_to_few_lengths(name):
  """What `aggressive` copies from is as long as the padded prompt."""
  with Engine(Decoder(MODEL, METHODS[name][0]())) as engine:
    assert engine.lengths == {"none": [32, 64, 128, 160], "aggressive": [160]}[name]


@pytest.mark.parametrize("wrong, message", [
  ({"prompt": []}, "prompt is empty"),
  ({"prompt": [12]}, r"`prompt\[0\]` must be between 0 and 11, got 12\."),
  ({"prompt": "text"}, "has no tokenizer"),
  ({"prompt": [1] * 155}, r"`max_new_tokens` must be together at most 160, got 155 and 8\."),
  ({"max_new_tokens": 0}, r"`max_new_tokens` must be between 1 and 2147483647, got 0\."),
  ({"temperature": -1}, r"`temperature` must be at least 0 \(0 is greedy\), got -1\."),
  ({"top_p": 0}, r"`top_p` must be above 0 and at most 1 \(1 keeps all\), got 0\."),
  ({"top_k": 1.5},
   r"`top_k` must be a whole number between 0 and 2147483647 \(0 keeps all\), got 1\.5\."),
  ({"min_p": 1}, r"`min_p` must be at least 0 and below 1 \(0 keeps all\), got 1\."),
  ({"typical_p": 0}, r"`typical_p` must be above 0 and at most 1 \(1 keeps all\), got 0\."),
  ({"seed": -1}, r"`seed` must be between 0 and 4294967295, got -1\."),
  ({"number": -1}, r"`number` must be between 0 and 2147483647, got -1\."),
  ({"stop": [99]}, r"`stop\[0\]` must be between 0 and 11, got 99\."),
])  # fmt: skip
def test_bad_requests_are_refused(engine, wrong, message):
  with pytest.raises(ValueError, match=message):
    engine.submit(**{"prompt": [1], "max_new_tokens": 8} | wrong)


@pytest.mark.parametrize("wrong, message", [
  ({"max_length": 161},
   r"`max_length` must be between 2 and 160 \(the model's positions\), got 161\."),
  ({"queue": -1}, r"`queue` must be between 0 and 2147483647, got -1\."),
  ({"rounds": 0}, r"`rounds` must be between 1 and 2147483647, got 0\."),
])  # fmt: skip
def test_bad_limits_are_refused(decoder, wrong, message):
  with pytest.raises(ValueError, match=message):
    Engine(decoder, **wrong)


def test_a_greedy_rule_refuses_to_sample():
  with (
    Engine(Decoder(MODEL)) as engine,
    pytest.raises(
      ValueError,
      match=(
        r"`temperature` must be 0 with the verifier 'greedy', got 0\.5; target_only takes "
        r"any\."
      ),
    ),
  ):
    engine.submit([1], 8, temperature=0.5)


@pytest.mark.slow
@pytest.mark.full(but=["history-4"])
@pytest.mark.parametrize("name", ["history-4", "token_recycling-4,seeded=0,kept=1"])
def test_what_one_request_taught_helps_the_next(name):
  prompt = [5, 6, 7, 5, 1, 2]
  (plain,) = Decoder(MODEL)([prompt], 20)
  with Engine(Decoder(MODEL, name, "target_only", batch=2), rounds=3) as engine:
    first, second = (engine.submit(prompt, 20) for _ in range(2))
    assert first.wait() == second.wait() == plain.tokens
    third = engine.submit(prompt, 20)
    assert third.wait() == plain.tokens
    assert third.passes < min(first.passes, second.passes)


@pytest.mark.slow
@pytest.mark.full(but=["options0-3", "options1-5"])
@pytest.mark.parametrize(
  ("options", "prefills"),
  [
    ({"drafter": "prompt_lookup-4"}, 3),
    ({"drafter": "history-4"}, 5),  # begins with what it learnt from the texts before
    ({"processors": ("penalties-1.3",)}, 3),  # begin anew with each request's own numbers
  ],
)
def test_requests_with_one_prompt_share_its_prefill(monkeypatch, options, prefills):
  prompts = ([1, 2, 3, 1, 2], [1, 2, 3, 1, 2], [4], [5], [5])
  settings = {"temperature": 0.9, "processors": options.get("processors", ())}
  texts = [Decoder(MODEL, seed=i, **settings)([p], 7)[0].tokens for i, p in enumerate(prompts)]
  seen, start, asked = [], DecodeRows._start, threading.Event()

  def counted(*args):
    assert asked.wait(60)
    seen.append(args[1])
    return start(*args)

  monkeypatch.setattr(DecodeRows, "_start", counted)
  decoder = Decoder(MODEL, verifier="target_only", batch=2, **settings | options)
  with Engine(decoder, rounds=2, queue=20) as engine:
    tickets = [engine.submit(p, 7, seed=i) for i, p in enumerate(prompts)]
    asked.set()
    assert [ticket.wait() for ticket in tickets] == texts
  assert len(seen) == 1 + prefills  # and that of the rows, which are free at first
