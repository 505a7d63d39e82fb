"""Drafts by load: no token depends on them, and what is taken is what promises most a second."""

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut
from test_conversation import MODEL
from test_engine import ASKED, END, alone

from specjax import Decoder, speculate
from specjax.decoding.prices import Prices
from specjax.drafters.combine.by_load import LARGER, PRIOR, Chooser, Seen, best, chances, pooled
from specjax.serving import timing
from specjax.serving.engine import Engine
from specjax.serving.rows import DecodeRows


@pytest.fixture
def timed(tmp_path, monkeypatch):
  """Prices of every kind of batch, which a test may change, in place of this machine's."""
  table = np.array([[1.0, 1.1, 1.3], [1.0, 1.4, 2.5], [1.0, 2.5, 6.0]])
  found = []

  def measure(decoder, batches, T, capacity):
    found.append(list(batches))
    return table[: len(batches)]

  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setattr(timing, "measure", measure)
  return found


@pytest.fixture
def engine(timed):
  decoder = Decoder(MODEL, "auto-4[prompt_lookup]", "target_only", batch=4, stop=[END])
  with Engine(decoder, rounds=2, queue=40) as engine:
    yield engine


@pytest.mark.slow
def test_no_token_depends_on_the_load(engine):
  """One, then several, then all rows are busy; rows are added and given up meanwhile."""
  expected = [alone(*request).tokens for request in ASKED]
  for at_once in (1, 2, 8):
    for begin in range(0, len(ASKED), at_once):
      tickets = [
        (i, engine.submit(ASKED[i][0], ASKED[i][1], **ASKED[i][2]))
        for i in range(begin, min(begin + at_once, len(ASKED)))
      ]
      for i, ticket in tickets:
        assert ticket.wait() == expected[i]


@pytest.mark.slow
def test_nothing_is_compiled_for_other_loads(engine, timed):
  assert engine.sizes == [1, 2, 4] == timed[0]
  engine.submit([1], 2).wait()
  for T in engine.lengths:
    engine.submit([1] * (T - 1), 1).wait()
  programs = speculate.compiled_start, speculate.compiled_advance
  before = [program._cache_size() for program in programs]
  seen = set()
  for at_once in (1, 2, 3, 7, 1, 1):
    tickets = [engine.submit([1, 2, 3, 1, 2], 40) for _ in range(at_once)]
    for ticket in tickets:
      ticket.wait()
      seen |= {depth for depth, n in enumerate(ticket.rounds.offered) if n}
  assert [program._cache_size() for program in programs] == before
  assert len(seen) > 1  # of several lengths


@pytest.mark.slow
def test_rows_follow_the_requests(timed, monkeypatch):
  counts, advance = [], DecodeRows.advance

  def seen(self, rounds):
    counts.append(self.count)
    return advance(self, rounds)

  monkeypatch.setattr(DecodeRows, "advance", seen)
  decoder = Decoder(MODEL, batch=4)
  with Engine(decoder, rounds=1, queue=9, fewer=[1, 2]) as engine:
    reached, gate = threading.Event(), threading.Event()

    def tell():
      reached.set()
      assert gate.wait(30)

    (first,) = Decoder(MODEL)([[1, 2]], 60)
    long = engine.submit([1, 2], 60, tell=tell)
    assert reached.wait(30)
    begun = len(counts)
    others = [engine.submit([i], 3) for i in range(3, 8)]
    gate.set()
    for i, ticket in zip(range(3, 8), others, strict=True):
      assert ticket.wait() == Decoder(MODEL)([[i]], 3)[0].tokens
    assert long.wait() == first.tokens
  assert counts[begun - 1] == 1 and counts[begun] == 4 and counts[-1] == 1
  assert [n for n, _ in itertools.groupby(counts[begun:])][-2:] in ([4, 1], [2, 1])


def test_prices_are_kept(timed, tmp_path):
  decoder = Decoder(MODEL, "auto-4[prompt_lookup]", "target_only", batch=4)
  for batches, measured in (([1, 2, 4], 1), ([1, 2, 4], 1), ([1, 2], 2)):
    found = timing.prices(decoder, batches, 32, 64)
    assert len(timed) == measured == len(list((tmp_path / "specjax" / "prices").iterdir()))
    for B, row in zip(batches, [[1.0, 1.1, 1.3], [1.0, 1.4, 2.5], [1.0, 2.5, 6.0]], strict=False):
      np.testing.assert_allclose(found.of(B), row)


@pytest.mark.slow
def test_prices_are_of_rounds():
  decoder = Decoder(MODEL, "auto-4[prompt_lookup]", "target_only")
  found = timing.measure(decoder, [1, 2], 32, 64)
  assert found.shape == (2, 3) and (found > 0).all()


@pytest.mark.parametrize("narrow", [False, True])
def test_rounds_without_a_guess_do_not_cheapen_a_draft(narrow):
  """Four rounds of each size, of which few have a draft; every third turn is disturbed."""
  price, drafted = np.array([5.0, 5.5, 7.0, 11.0]), np.array([0, 1, 4, 2])
  empty = price[0] if narrow else price
  turn = np.stack([drafted * price + (4 - drafted) * empty, np.full(4, 4.0), drafted], -1)
  turns = np.stack([turn * [slower, 1, 1] for slower in 3 * (1.0, 1.0, 1.9)])
  np.testing.assert_allclose(timing.rounds_of(turns, narrow), price)
  turns[:, 1, 0] = 4.0  # less than nothing drafted
  assert timing.rounds_of(turns, narrow)[1] == price[0]


def test_rounds_correct_their_price():
  """Those of one size twice as long, which is learnt; others follow in part, other rows do not."""
  found = Prices([1, 2], np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]))

  def learn(B, size, seconds):
    found.learn(B, size, seconds / found.of(B)[size])

  learn(1, 1, 1000.0)
  assert found.of(1)[1] < 3.5  # one long round is not believed
  for _ in range(500):
    learn(1, 1, 4.0)
  small, own, large = found.of(1) / [1.0, 2.0, 4.0]
  assert 1.99 < own < 2.01 and 1.1 < small < 1.6 and abs(small - large) < 1e-6
  np.testing.assert_allclose(found.of(2), [1.0, 2.0, 4.0])
  for _ in range(10):
    learn(2, 2, 2.0)
  small, _, large = found.of(2) / [1.0, 2.0, 4.0]
  assert 0.5 < large < 0.55 and 0.7 < small < 0.85


@pytest.mark.parametrize("text", [[3, 1, 4, 1, 5, 9], [2, 7]])
def test_a_head_reads_all_text_whatever_is_drafted(text):
  """After rounds of every size it keeps what it keeps after reading the whole text at once."""
  decoder = Decoder(cut(), "auto-4[eagle3]", "target_only")
  tokens = jnp.asarray([[*text, *[0] * (32 - len(text))]], jnp.int32)
  request = decoder.request(np.zeros(1, int), np.array([28]))
  request = request._replace(stop=jnp.full_like(request.stop, -1))

  def read(tokens, n):
    arguments = decoder.method, decoder.weights, tokens, jnp.array([n], jnp.int32), request
    return speculate.compiled_start(*arguments, 64)

  state = read(tokens, len(text))
  for size in (0, 2, 0, 1, 0, 0, 2):
    state = speculate.compiled_advance(
      decoder.methods[size], decoder.weights, request, state, jnp.int32(1)
    )
  n = int(state.context.length[0])
  assert n > len(text) + 6
  whole = read(state.context.tokens[:, :32], n)

  def kept(x):
    x = np.asarray(x)
    return x[:, :, : n - 1] if x.ndim == 4 else x

  for x, y in zip(*(jax.tree.leaves(s.drafter.own) for s in (state, whole)), strict=True):
    np.testing.assert_allclose(kept(x), kept(y), atol=2e-4)


SAME = [("eagle3", 2, "eagle3-2"), ("eagle3", 4, "eagle3-4"), ("prompt_lookup", 1, "none")]


@pytest.mark.parametrize(("drafter", "nodes", "name"), SAME)
def test_a_size_costs_what_a_fixed_draft_costs(drafter, nodes, name):
  """But for what is counted of drafts, a round has the operations of one that always drafts so."""

  def operations(decoder, method):
    tokens, one = jax.ShapeDtypeStruct((1, 32), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    asked = decoder.weights, tokens, one, decoder.request(np.zeros(1, int), np.array([28]))
    state = speculate.compiled_start.eval_shape(decoder.method, *asked, 64)
    round_ = speculate.compiled_advance.lower(method, asked[0], asked[3], state, jnp.int32(1))
    return round_.cost_analysis()["flops"], round_.as_text().count("stablehlo.gather")

  by_load, fixed = (Decoder(cut(), n, "target_only") for n in (f"auto-4[{drafter}]", name))
  (method,) = (one for one in by_load.methods if one.drafter.nodes == nodes)
  flops, gathers = operations(by_load, method)
  least, same = operations(fixed, fixed.method)
  assert flops < 1.01 * least and gathers == same  # a deeper draft gathers more often


def test_the_best_size_is_taken():
  rng = np.random.default_rng(0)
  for _ in range(200):
    gains, cost = rng.uniform(size=4), 1 + np.cumsum(rng.uniform(size=4))
    rates = [sum(gains[: i + 1]) / cost[i] for i in range(4)]
    assert best(cost, gains) == rates.index(max(rates))


def test_chances_are_those_of_a_row_where_it_has_many():
  tries = np.array([[0.0, 500.0], [0.0, 0.0], [0.0, 500.0]])
  hits = np.array([[0.0, 450.0], [0.0, 0.0], [0.0, 50.0]])
  found = chances(tries, hits, pooled(tries, hits, np.ones(2)))
  np.testing.assert_allclose(found[:, 1], [0.9, 0.5, 0.1], atol=0.02)


def test_nodes_that_are_not_tried_follow_those_before_them():
  """Here nine in ten guesses are wrong, or right, where three in four were usual."""
  tries = np.array([[100.0, 100.0, 0.0, 0.0]])
  for chance in (0.1, 0.9):
    hits = np.array([[100.0, 100.0 * chance, 0.0, 0.0]])
    found = pooled(tries, hits, np.array([1.0, PRIOR, PRIOR, PRIOR]))
    np.testing.assert_allclose(found[1:], chance, atol=0.06)


def test_a_chain_that_ends_early_tells_nothing_of_later_nodes():
  tries, hits = np.array([[[4.0, 4.0, x, x]] for x in (0.0, 4.0)]), np.array([[4.0, 0.0, 0.0, 0.0]])
  usual = np.full(4, PRIOR)
  unknown, refused = (pooled(own, hits, usual) for own in tries)
  assert unknown[1] == refused[1] == unknown[2] > 1.3 * refused[2]


def test_sizes_that_are_not_drafted_are_not_thought_of_as_worse():
  """The first guess alone is drafted for long."""
  choose = Chooser((1, 2, 4), False)
  tries = np.array([[9.0, 9.0, 0.0]])
  for _ in range(30):
    choose(np.array([1.0, 1.0, 99.0]), Seen((), tries, 0.9 * tries, np.ones(1, bool)))
  np.testing.assert_allclose(choose.usual[1:], [0.892, PRIOR + PRIOR**2], atol=0.001)


def counted(sizes, chance, share=1.0):
  """(tries, hits) of each size in a round with a whole draft, a chain: expectations."""
  hits = [sum(chance**i for i in range(a, b)) for a, b in itertools.pairwise(sizes)]
  hits = share * np.array([1.0, *hits])
  return np.array([1.0, *hits[:-1]]), hits


def of_a_request(choose, prices, seconds, chance, share, narrow):
  """Tokens a second in 16 choices of four rounds. A chain of 8 nodes, in a `share` of rounds, is
  right with a `chance` at each node where it was before. All sums are expectations."""
  tries, hits, tokens, total = np.zeros((1, 4)), np.zeros((1, 4)), 0.0, 0.0
  for _ in range(16):
    size, expected = choose(prices.of(1), Seen((), tries, hits, np.ones(1, bool)))
    gains, took = of_a_round(SIZES[size], seconds[size], seconds[0], chance, share, narrow)
    tried, hit = np.where(np.arange(4) <= (size or -1), counted(SIZES, chance, share), 0.0)
    for _ in range(4):
      tries, hits = 0.98 * tries + tried, 0.98 * hits + hit
    prices.learn(1, size, took / expected)
    tokens, total = tokens + gains, total + took
  return tokens / total


def of_a_round(width, seconds, least, chance, share, narrow):
  """(tokens, seconds)"""
  gains = 1 + share * sum(chance**i for i in range(1, width))
  return gains, least + share * (seconds - least) if narrow else seconds


SIZES = (1, 2, 4, 8)
FEW, SOME, MANY = (1.0, 1.07, 1.22, 1.59), (1.0, 1.15, 1.35, 1.9), (1.0, 1.4, 2.2, 4.0)  # busy rows


@pytest.mark.parametrize("seconds", [FEW, SOME, MANY])
@pytest.mark.parametrize("chance", [0.2, 0.4, 0.6, 0.75, 0.9])
@pytest.mark.parametrize(("share", "narrow"), [(1.0, False), (0.4, False), (0.4, True)])
@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_the_best_fixed_size_is_found(seconds, chance, share, narrow, slower):
  """From the first request on, also where all rounds take longer than they were timed."""
  prices, choose = Prices([1], np.array([seconds])), Chooser(SIZES, narrow)
  really = slower * np.array(seconds)
  fixed = [
    np.divide(*of_a_round(w, s, really[0], chance, share, narrow))
    for w, s in zip(SIZES, really, strict=True)
  ]
  rates = [of_a_request(choose, prices, really, chance, share, narrow) for _ in range(8)]
  assert min(rates) > 0.95 * max(fixed)
  assert np.mean(rates[1:]) > 0.96 * max(fixed)


def test_a_price_that_was_timed_wrong_is_learnt():
  """No draft pays, but rounds without one were timed, once, while the machine was busy."""
  really, prices = np.array([1.0, 1.3, 1.7, 2.5]), Prices([1], np.array([[1.9, 1.8, 2.9, 5.0]]))
  choose = Chooser(SIZES, False)
  rates = [of_a_request(choose, prices, really, 0.15, 1.0, False) for _ in range(12)]
  assert rates[0] < 0.93 and min(rates[-3:]) > 0.95


def test_guesses_below_a_guess_that_is_seldom_right_are_drafted():
  """A tree: the second node is a sibling of the first, and all others continue the first."""
  right = np.array([1.0, 0.85, 0.08, 0.74, 0.07, 0.65, 0.59, 0.53])
  seconds, widths, choose = np.array([1.0, 1.1, 1.35, 1.8]), np.array(SIZES), Chooser(SIZES, False)
  hits = np.add.reduceat(right, [0, *SIZES[:-1]])
  sizes, size, tries, hit = [], 0, np.zeros((1, 4)), np.zeros((1, 4))
  for _ in range(30):
    sizes.append(size := choose(seconds, Seen((), tries, hit, np.ones(1, bool)))[0])
    drafted = np.arange(4) <= (size or -1)
    tries = 0.92 * tries + 4 * drafted * [1.0, *hits[:-1]]
    hit = 0.92 * hit + 4 * drafted * hits
  best_size = int(np.argmax([right[:w].sum() for w in widths] / seconds))
  assert sizes[10:].count(best_size) > 17


def seen(rounds, chance):
  """What a row has after so many rounds of all of 4 nodes."""
  tries, hits = (rounds * x[None] for x in counted((1, 2, 4), chance))
  return Seen((), tries, hits, np.ones(1, bool))


def test_a_new_request_begins_with_what_was_usual():
  """A guess is right one time in ten and costs half a round: nothing pays."""
  prices, chooser = np.array([1.0, 1.5, 2.5]), Chooser((1, 2, 4), False)

  def choose(rounds, chance):
    return chooser(prices, seen(rounds, chance))[0]

  assert choose(0, 0.1) == 1  # nobody knows
  chosen = [choose(rounds, 0.1) for _ in range(20) for rounds in (8, 16, 24)]
  assert choose(0, 0.1) == 0
  assert chosen[LARGER - 2] == 1 and sum(chosen[9:]) == 1  # one is a try
  # And back, after a while in which guesses are right.
  for _ in range(60):
    choose(24, 0.95)
  assert choose(0, 0.95) == 2


@pytest.mark.parametrize(("name", "words"), [
  ("auto[prompt_lookup-4]", "without a number"), ("auto[auto]", "another drafter"),
  ("auto+prompt_lookup", "do not join it to another"), ("auto-1", "between 2 and 4096 nodes"),
  ("auto[swift]", "writes its state while it drafts"), ("auto[jacobi]", "depends on its size"),
  ("auto[layerskip]", "it draws its tokens, or has"), ("auto[none]", "takes no number"),
])  # fmt: skip
def test_what_does_not_go_by_load_is_refused(name, words):
  with pytest.raises(ValueError, match=words):
    Decoder(MODEL, name, "target_only")([[1, 2]], 4)
