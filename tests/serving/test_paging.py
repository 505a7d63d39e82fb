"""Rows whose texts lie in pages say what each says alone, and all pages are free at the end."""

import dataclasses
import threading

import jax
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sentences import says
from test_conversation import METHODS, MODEL, random_model
from test_prefixes import ASKED, BLOCK, LONG, NEW, PLAIN, SYSTEM

from specjax import Decoder, speculate
from specjax.models.config import GatedDelta, Kind, Latent, Mamba
from specjax.serving import paging, pieces, timing
from specjax.serving.engine import Engine
from specjax.serving.metrics import Metrics
from specjax.serving.paging import over_pages
from specjax.serving.pool import Pool
from specjax.serving.rows import DecodeRows
from specjax.serving.run import warm

# (prompt, budget, what it asks for); at most 160 tokens, so three pages
NUMBERS = np.random.default_rng(3)
MIXED = [
  (
    [*(SYSTEM if i % 3 else ()), *NUMBERS.integers(3, 12, size=1 + 7 * i % 59).tolist()],
    10 + 13 * i % 25,
    PLAIN if i % 4 == 0 else {"temperature": 0.6 + i % 7 / 10, "seed": i, "top_k": i % 3 * 5},
  )
  for i in range(48)
]


PAGED = ["eagle", "draft_model", "draft_model, tree", "rescored"]  # with caches of their own


def engine_decoder(name, batch=2) -> Decoder:
  make, own = METHODS[name]
  own = {k: v for k, v in own.items() if k not in ("verifier", "batch")}
  return Decoder(MODEL, make(), "target_only", batch=batch, **own)


def engine_of(name="prompt_lookup", pages=40, batch=2, **options) -> Engine:
  return Engine(engine_decoder(name, batch), queue=60, pages=pages, **options)


def check_pages(engine: Engine) -> None:
  """Nobody but the store has pages."""
  pool, kept = engine.paging.pool, engine.pieces.kept
  assert sorted(pool.uses(page) for page in range(1, pool.count + 1)) == sorted(
    [0] * pool.free + [1] * len(kept)
  )
  assert len({block.page for block in kept}) == len(kept)


@pytest.fixture(scope="module")
def expected():
  """The texts of plain decoding, each prompt read by itself and as a whole."""
  return [
    Decoder(MODEL, "none", "target_only", **asked)([prompt], budget)[0].tokens
    for prompt, budget, asked in MIXED
  ]


@pytest.mark.slow
@pytest.mark.full(but=["draft_model"])
@pytest.mark.parametrize("name", [
  "none", "prompt_lookup", "layerskip", *PAGED, "draft_model, policy", "eagle3", "hydra"
])  # fmt: skip
def test_texts_and_rounds_are_those_of_one_alone_where_pages_are_few(name, expected):
  """With 4 pages for 4 rows of up to 3 pages some are put back."""
  with engine_of(name, pages=4, batch=4, rounds=2) as engine:
    tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in MIXED]
    assert [ticket.wait() for ticket in tickets] == expected
    assert engine.paging.put_back > 0 and sum(ticket.reused for ticket in tickets) > 0
  check_pages(engine)
  make, options = METHODS[name]
  for ticket, (prompt, budget, asked) in [*zip(tickets, MIXED, strict=True)][::5]:
    (alone,) = Decoder(MODEL, make(), "target_only", **options | asked)([prompt], budget)
    assert ticket.passes == alone.passes  # a page that another has written would guess worse


@pytest.mark.parametrize("name", PAGED)
def test_a_row_of_its_own_has_what_is_not_in_pages(name):
  """Arrays that are as long as a text are in pages, the target's and the drafter's."""
  decoder = engine_decoder(name)
  found = over_pages(decoder, 160, 9)
  capacity = found.capacity(160, 0)
  axes, size, _ = pieces.axes_of(found, capacity)
  assert set(axes) == {None} and size < 1000 < pieces.axes_of(decoder, capacity)[1]
  kvs = paging.shapes(found, capacity, 9)
  assert len(kvs) == 2
  assert {x.shape[::2] for x in jax.tree.leaves(kvs)} == {(1 + 9, BLOCK)}


def test_beginnings_are_shared_as_in_a_store():
  with engine_of() as engine:
    counts = Metrics(engine)
    tickets = [engine.submit(prompt, NEW, **asked) for prompt, asked, _ in ASKED]
    for ticket in tickets:
      ticket.wait()
    families = text_string_to_metric_families(counts.text().decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
  assert [ticket.reused for ticket in tickets] == [reused for *_, reused in ASKED]
  assert engine.paging.put_back == found["specjax_put_back"] == 0
  kept = len(engine.pieces.kept)
  assert (found["specjax_free_pages"], found["specjax_kept_pages"]) == (40 - kept, kept)
  check_pages(engine)


@pytest.mark.slow
def test_nothing_is_compiled_while_it_serves():
  with engine_of(pages=3, batch=3, fewer=[1]) as engine:
    warm(engine)
    programs = [pieces.compiled_begin, pieces.compiled_piece, pieces._put, pieces._ready]
    programs.append(speculate.compiled_advance)
    compiled = [program._cache_size() for program in programs]
    tickets = [engine.submit([4] * 60, 30, temperature=0.9, seed=i) for i in range(6)]
    for ticket in tickets:
      ticket.wait()
    assert engine.paging.put_back > 0
    assert [program._cache_size() for program in programs] == compiled


class Gate:
  """Holds the engine's thread when a request has something new."""

  def __init__(self):
    self.reached, self.open = threading.Event(), threading.Event()

  def __call__(self):
    self.reached.set()
    assert self.open.wait(60)


def test_who_goes_leaves_his_pages():
  with engine_of(pages=5, batch=3) as engine:
    gate = Gate()
    first = engine.submit([*SYSTEM, 3], 60, tell=gate, **PLAIN)
    assert gate.reached.wait(60)
    others = [engine.submit([*LONG[:i], 3], 30, **PLAIN) for i in (5, 70, 90)]
    gate.open.set()
    first.cancel()
    others[1].cancel()
    for ticket in (first, *others):
      ticket.wait()
    assert others[0].reason == others[2].reason == "length"
  check_pages(engine)


@pytest.mark.parametrize("what", ["advance", "place"])
def test_a_round_that_breaks_leaves_no_pages_behind(what, monkeypatch, caplog):
  own, calls = getattr(DecodeRows, what), []

  def breaks(*arguments):
    calls.append(1)
    if len(calls) == 3:
      raise MemoryError("no room")
    return own(*arguments)

  monkeypatch.setattr(DecodeRows, what, breaks)
  with engine_of(pages=6) as engine:
    tickets = [engine.submit([*SYSTEM, i], 20, **PLAIN) for i in range(3, 9)]
    errors = 0
    for ticket in tickets:
      try:
        ticket.wait()
      except MemoryError:
        errors += 1
    assert 1 <= errors <= 2 and not engine.closed
  check_pages(engine)


WINDOWS = {"kinds": (Kind(window=70), *[Kind()] * 3)}
LATENTS = {"latent": Latent(16, 0, 4, 4, 8), "kv_heads": 1, "head_dim": 8, "rotary_dim": 4}
RECURRENT = {
  "kinds": (Kind(recurrence=GatedDelta(1, 2, 8, 8)), Kind(), Kind(recurrence=Mamba(2, 8, 8, 1)),
            Kind()),
}  # fmt: skip


@pytest.mark.parametrize("change", [WINDOWS, LATENTS], ids=["windows", "latents"])
def test_draft_models_of_other_kinds_are_in_pages(change):
  small = random_model(dataclasses.replace(MODEL.config, **change))
  found = over_pages(Decoder(MODEL, small, "target_only"), 160, 9)
  assert len(paging.shapes(found, 192, 9)) == 2


@pytest.mark.slow
@pytest.mark.full(but=["recurrent"])
@pytest.mark.parametrize(
  "change", [WINDOWS, LATENTS, RECURRENT], ids=["windows", "latents", "recurrent"]
)
def test_targets_of_other_kinds_say_what_each_text_says_alone(change):
  """Beginnings are shared, and some are put back."""
  model = random_model(dataclasses.replace(MODEL.config, **change))
  some = MIXED[:12]
  alone = [Decoder(model, "none", "target_only", **asked) for _, _, asked in some]
  wanted = [
    decoder([prompt], budget)[0].tokens
    for decoder, (prompt, budget, _) in zip(alone, some, strict=True)
  ]
  decoder = Decoder(model, "prompt_lookup-4", "target_only", batch=4)
  with Engine(decoder, queue=60, pages=4, rounds=2) as engine:
    tickets = [engine.submit(prompt, budget, **asked) for prompt, budget, asked in some]
    assert [ticket.wait() for ticket in tickets] == wanted
    assert engine.paging.put_back > 0 and sum(ticket.reused for ticket in tickets) > 0
  check_pages(engine)


@pytest.mark.parametrize(("model", "name", "options", "more", "words"), [
  ({}, "jacobi", {}, {}, "0 with the drafter 'jacobi-4': prompts are then read as a whole, got 9."),
  ({}, "none", {"cache": "int8"}, {}, "0 with the cache 'int8' and the verifier 'target_only'"),
  ({}, "none", {}, {"pages": 2}, "at least 3, which 160 tokens take, got 2."),
  ({}, "none", {}, {"pages": -1}, "between 0 and 16777216, got -1."),
])  # fmt: skip
def test_what_does_not_go_with_pages_is_refused(model, name, options, more, words):
  changed = dataclasses.replace(MODEL, config=dataclasses.replace(MODEL.config, **model))
  decoder = Decoder(changed, METHODS[name][0](), "target_only", **options)
  with pytest.raises(ValueError) as error:
    Engine(decoder, **{"pages": 9} | more)
  assert says(str(error.value), f"`pages` must be {words}")
  with pytest.raises(ValueError, match="`prefixes` must be 0 with `pages`"):
    Engine(decoder, pages=9, prefixes=10**8)


def test_prices_over_pages_are_kept_apart():
  decoder = Decoder(MODEL, "prompt_lookup", "target_only")
  files = {timing._file(x, [1], 64, 128) for x in (decoder, over_pages(decoder, 128, 2))}
  assert len(files) == 2


def test_the_pool_counts():
  pages = np.zeros((5, 1, BLOCK, 2), np.float32)
  pool = Pool([pages], 3)
  taken = [pool.take() for _ in range(4)]
  assert sorted(taken) == [1, 2, 3, 4] and pool.free == 0
  with pytest.raises(IndexError):
    pool.take()
  assert pool.hold(taken[1]) == taken[1] and pool.uses(taken[1]) == 2
  pool.drop(taken[1])
  assert pool.free == 0
  pool.drop(taken[1])
  assert pool.free == 1 and pool.take() == taken[1]
