"""Prompts that begin alike are read once, and no bit and no token tells which was read."""

import threading

import jax
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sentences import says
from test_conversation import METHODS, MODEL, NEAR, OF_PASSES

from specjax import Decoder
from specjax.serving import pieces
from specjax.serving.engine import Engine
from specjax.serving.metrics import Metrics
from specjax.serving.pieces import Pieces
from specjax.serving.prefixes import BLOCK, Prefixes
from specjax.serving.rows import DecodeRows
from specjax.serving.run import warm

NUMBERS = np.random.default_rng(0)
SYSTEM = NUMBERS.integers(3, 12, size=1 + BLOCK).tolist()  # a block, and the token before it
OTHER = NUMBERS.integers(3, 12, size=1 + BLOCK).tolist()
LONG = NUMBERS.integers(3, 12, size=2 * BLOCK).tolist()
NEW = 9
PLAIN = {"temperature": 0.0}
# (prompt, what it asks for, the tokens of it that an endless store has by then)
ASKED = [
  ([*SYSTEM, 5, 6, 7, 5], PLAIN, 0),
  ([*SYSTEM, 4], {"temperature": 0.8, "seed": 5}, BLOCK),
  (OTHER[:40], PLAIN, 0),
  ([*OTHER, 8], {"temperature": 1.1, "seed": 6, "top_k": 4}, 0),
  (SYSTEM[:-1], PLAIN, 0),
  (SYSTEM, {"temperature": 0.9, "seed": 7}, BLOCK),
  ([*SYSTEM, *LONG[: BLOCK + 3]], PLAIN, BLOCK),
  ([*OTHER, 8, 9], PLAIN, BLOCK),
  ([*SYSTEM, *LONG[: BLOCK + 3]], {"temperature": 0.7, "seed": 8}, 2 * BLOCK),
  ([*SYSTEM, 4], PLAIN, BLOCK),
]


@pytest.fixture(scope="module")
def expected():
  """The texts of plain decoding, each prompt read by itself and as a whole."""
  return [
    Decoder(MODEL, "none", "target_only", **asked)([prompt], NEW)[0].tokens
    for prompt, asked, _ in ASKED
  ]


def answered(engine: Engine) -> list:
  tickets = [engine.submit(prompt, NEW, **asked) for prompt, asked, _ in ASKED]
  for ticket in tickets:
    ticket.wait()
  return tickets


def engine_of(name: str, **options) -> Engine:
  make, own = METHODS[name]
  own = {k: v for k, v in own.items() if k not in ("verifier", "batch")}
  return Engine(Decoder(MODEL, make(), "target_only", batch=2, **own), queue=20, **options)


# The others have texts of their own, or are of the same kind.
OTHERS = ("draft_model, exits", "second row", "penalties", "momentum", "forced")


@pytest.mark.slow
@pytest.mark.full(but=["eagle"])
@pytest.mark.parametrize("name", [x for x in METHODS if x not in (*OF_PASSES, *OTHERS)])
def test_texts_and_rounds_are_those_of_one_alone(name, expected):
  make, options = METHODS[name]
  options = {k: v for k, v in options.items() if k not in ("verifier", "batch")}
  with engine_of(name, prefixes=10**8) as engine:
    tickets = answered(engine)
    assert [ticket.tokens for ticket in tickets] == expected
    assert [ticket.reused for ticket in tickets] == [reused for *_, reused in ASKED]
  for ticket, (prompt, asked, _) in zip(tickets, ASKED, strict=True):
    (alone,) = Decoder(MODEL, make(), "target_only", **options | asked)([prompt], NEW)
    assert ticket.passes == alone.passes


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_store_that_is_too_small(expected, blocks):
  with engine_of("prompt_lookup", prefixes=10**8) as endless:
    answered(endless)
    size = endless.pieces.kept.bytes // len(endless.pieces.kept)
  with engine_of("prompt_lookup", prefixes=blocks * size) as engine:
    tickets = answered(engine)
    assert [ticket.tokens for ticket in tickets] == expected
    assert len(engine.pieces.kept) == blocks and engine.pieces.kept.bytes == blocks * size
    assert 0 < sum(ticket.reused for ticket in tickets) < sum(reused for *_, reused in ASKED)


@pytest.mark.parametrize(
  "drafter",
  [
    pytest.param("none", id="none"),
    pytest.param(METHODS["eagle"][0], id="eagle", marks=pytest.mark.slow),
    pytest.param(lambda: NEAR, id="draft_model", marks=pytest.mark.slow),
  ],
)
def test_what_is_put_back_has_the_bits_of_what_is_read(drafter):
  decoder = Decoder(MODEL, drafter() if callable(drafter) else drafter, "target_only")

  def read(reader: Pieces, prompt: list[int]) -> list[np.ndarray]:
    reading = reader.begin(prompt)
    while not reading.done:
      reader.go_on(reading)
    found = []
    for x, axis in zip(jax.tree.leaves(reading.read), reader._axes, strict=True):
      x = np.asarray(x)
      found.append(x if axis is None else np.take(x, np.arange(len(prompt) - 1), axis))
    return found

  prompt = [*SYSTEM, *LONG, 5, 5, 6]
  cold, warmed = (Pieces(decoder, 4 * BLOCK, 10**8) for _ in range(2))
  read(warmed, [*SYSTEM, *LONG[: BLOCK + 7]])  # shares two blocks, and a part of the third
  assert warmed.begin(prompt).reused == 2 * BLOCK
  for x, y in zip(read(cold, prompt), read(warmed, prompt), strict=True):
    np.testing.assert_array_equal(x, y)
  assert warmed.begin(prompt).reused == 3 * BLOCK


def test_nothing_is_compiled_while_it_serves():
  with engine_of("prompt_lookup", prefixes=10**8) as engine:
    warm(engine)
    programs = [pieces.compiled_begin, pieces.compiled_piece, pieces._put, pieces._ready]
    compiled = [program._cache_size() for program in programs]
    answered(engine)
    assert [program._cache_size() for program in programs] == compiled


def test_what_is_reused_is_counted():
  with engine_of("prompt_lookup", prefixes=10**8) as engine:
    counts = Metrics(engine)
    answered(engine)
    families = text_string_to_metric_families(counts.text().decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
  assert found["specjax_prefix_hits_total"] == sum(reused > 0 for *_, reused in ASKED)
  assert found["specjax_reused_tokens_total"] == sum(reused for *_, reused in ASKED)
  assert found["specjax_prefix_bytes"] == engine.pieces.kept.bytes > 0


class Seen:
  """What an engine does, in order: "piece" or the number of rounds that it runs."""

  def __init__(self, monkeypatch, of_piece=lambda: None):
    self.done, go_on, advance = [], Pieces.go_on, DecodeRows.advance

    def piece(reader, reading):
      self.done.append("piece")
      go_on(reader, reading)
      of_piece()

    def rounds(rows, count):
      self.done.append(count)
      return advance(rows, count)

    monkeypatch.setattr(Pieces, "go_on", piece)
    monkeypatch.setattr(DecodeRows, "advance", rounds)


def test_who_decodes_waits_for_a_piece_at_a_time(monkeypatch, expected):
  seen, reached, opened = Seen(monkeypatch), threading.Event(), threading.Event()

  def gate():
    reached.set()
    assert opened.wait(60)

  with engine_of("prompt_lookup", prefixes=10**8, rounds=3) as engine:
    first = engine.submit([*OTHER, *OTHER], 20, tell=gate, **PLAIN)
    assert reached.wait(60)
    assert seen.done == ["piece", "piece", "piece", 3]  # nobody decodes beside it
    tickets = [engine.submit(prompt, NEW, **asked) for prompt, asked, _ in ASKED[6:]]
    opened.set()
    assert [ticket.wait() for ticket in tickets] == expected[6:]
    assert first.wait() == Decoder(MODEL)([[*OTHER, *OTHER]], 20)[0].tokens
  assert seen.done[4:9] == ["piece", 1, "piece", 1, "piece"]


def test_who_goes_while_his_prompt_is_read(monkeypatch, expected):
  asked, went = threading.Event(), []

  def leave():
    assert asked.wait(60)
    went[0].cancel()

  seen = Seen(monkeypatch, leave)
  with engine_of("prompt_lookup", prefixes=10**8) as engine:
    went.append(engine.submit([*SYSTEM, *LONG[:60]], NEW))
    stays = engine.submit(ASKED[0][0], NEW, **PLAIN)
    asked.set()
    assert went[0].wait() == [] and went[0].reason == "cancelled"
    assert stays.wait() == expected[0] and stays.reused == BLOCK
  assert seen.done[:2] == ["piece", "piece"]


@pytest.mark.parametrize(("name", "options", "prefixes", "words"), [
  *((name, {}, 10**8, f"0 with the drafter {shown!r}: prompts are then read as a whole")
    for name, shown in [("jacobi", "jacobi-4"), ("aggressive", "aggressive-4"),
                        ("draft_model, exits", "draft_model")]),
  ("none", {"cache": "int8"}, 10**8, "0 with the cache 'int8' and the verifier 'target_only'"),
  ("none", {}, 100, "at least 16388 bytes, which 64 tokens take here, got 100."),
  ("none", {}, -1, "between 0 and 1125899906842624, got -1."),
])  # fmt: skip
def test_bad_stores_are_refused(name, options, prefixes, words):
  decoder = Decoder(MODEL, METHODS[name][0](), "target_only", **options)
  with pytest.raises(ValueError) as error:
    Engine(decoder, prefixes=prefixes)
  assert says(str(error.value), f"`prefixes` must be {words}")


def test_what_learns_from_passes_reads_prompts_as_a_whole():
  """It says so itself; whether the others read in pieces as they say is seen in their rounds."""
  assert {x for x in METHODS if not Decoder(MODEL, METHODS[x][0]()).method.drafter.by_pieces} == {
    *OF_PASSES
  }


def test_the_tree_is_its_definition():
  """Beside a list of texts: the least recently used one that begins no other goes."""
  numbers, held = np.random.default_rng(1), [np.zeros(10, np.int8)]
  store, texts = Prefixes(50), list[tuple[int, ...]]()  # the least recently used first
  for _ in range(400):
    blocks = numbers.integers(2, size=numbers.integers(1, 5))
    ids = [7, *np.repeat(blocks, BLOCK).tolist(), *[9] * numbers.integers(BLOCK)]
    chain = store.find(ids)
    begun = [tuple(ids[: 1 + BLOCK * (i + 1)]) for i in range(len(blocks))]
    there = [text for text in begun if text in texts]
    assert len(chain) == len(there)
    for _ in range(len(chain), len(blocks)):
      chain.append(store.add(chain, ids, held))
    for text in begun:
      if all(above in texts for above in begun[: begun.index(text)]):
        used = begun[: begun.index(text) + 1]
        texts = [x for x in texts if x not in used] + used[::-1]
        while len(texts) > 5:
          texts.remove(next(x for x in texts if not any(y[: len(x)] == x != y for y in texts)))
    assert len(store) == len(texts) and store.bytes == 10 * len(texts)
