"""The search of SWIFT: which sets it tries, on which tokens, when it ends, and what it costs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.decoding.method import method as pair
from specjax.drafters import swift
from specjax.drafters.layers import skipped_layers
from specjax.drafters.layers.own_layers import agreement
from specjax.drafters.layers.swift import FRUITLESS, GOOD, TRIES, another, begin, unfinished
from specjax.models.config import Config
from specjax.models.transformer import init, target
from specjax.sampling import Settings, request_keys
from specjax.verifiers import target_only

V, L, B, W = 24, 4, 2, 3
CONFIG = Config(
  vocab_size=V, width=16, layers=L, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=96
)
OWN = target(CONFIG)
PARAMS = jax.tree.map(
  lambda x: x * 12 + 0.01, jax.jit(functools.partial(init, CONFIG))(jax.random.key(1))
)
LENGTH = jnp.array([6, 3])
TOKENS = jnp.asarray(np.random.default_rng(0).integers(V, size=(B, 6)), jnp.int32)
SETTINGS = Settings(jnp.zeros(B), jnp.zeros(B, jnp.int32), jnp.ones(B), jnp.zeros(B))
REQUEST = speculate.DecodeRequest(
  SETTINGS, request_keys(1, np.arange(B)), jnp.array([60, 60]), jnp.array([-1])
)


@functools.cache
def method(own=OWN, window: int = W, skip: float = 0.5):
  return pair(own, swift(own, 4, window, skip), target_only())


def start(search=None, **more):
  weights = speculate.Weights(PARAMS, begin(L) if search is None else search)
  state = speculate.compiled_start(method(**more), weights, TOKENS, LENGTH, REQUEST, 80)
  return weights, state


def searches(state):
  """What each row knows, one after the other."""
  return [jax.tree.map(lambda x, b=b: np.asarray(x)[b], state.drafter.search) for b in range(B)]


def test_the_first_set_is_the_published_one():
  run = skipped_layers.every_second(8)
  assert np.flatnonzero(~run[:, 0]).tolist() == np.flatnonzero(~run[:, 1]).tolist() == [1, 3, 5]


@pytest.mark.slow
def test_another_set_is_random_or_swaps_two():
  run = jnp.asarray(skipped_layers.every_second(8))
  seen = set()
  for seed in range(40):
    noise = jax.random.gumbel(jax.random.key(seed), (12,))
    new, swapped = (another(run, noise, 5, jnp.bool(afresh)) for afresh in (True, False))
    for got in (new, swapped):
      assert bool(got[0].all()) and bool(got[-1].all())
    assert int((~new).sum()) == 5
    left = np.asarray(swapped != run)
    assert left.sum() == 2 and int((~swapped).sum()) == int((~run).sum())
    seen.add(np.asarray(new).tobytes())
  assert len(seen) > 30


def rounds(state, weights, count: int):
  """States after each of some rounds."""
  for _ in range(count):
    state = speculate.compiled_advance(method(), weights, REQUEST, state, jnp.int32(1))
    yield jax.tree.map(jnp.copy, state)


@pytest.mark.full
def test_every_score_is_that_of_the_newest_window():
  """Of tokens of the answer, no matter how far it has come; all rows know the same."""
  weights, begun = start()
  before, ends = searches(begun)[0], set()
  for state in rounds(begun, weights, 14):
    now, again = searches(state)
    for one, other in zip(now, again, strict=True):
      np.testing.assert_array_equal(one, other)
    end = np.asarray(state.drafter.end)
    if now.tried > before.tried and now.age == 1:  # the best set on new windows
      assert ((end > np.asarray(LENGTH) + W) | (end == 0)).all() and end.any()
      ends.add(tuple(end.tolist()))
      context = state.context._replace(cache=state.cache)
      found = agreement(OWN, PARAMS, context, state.drafter.end, W, jnp.asarray(now.run))
      want = np.asarray(found)[end > 0].mean()
      assert float(now.score) == pytest.approx(float(want), abs=1e-6)
    if now.tried == before.tried:
      np.testing.assert_array_equal(now.run, before.run)
    before = now
  assert before.tried > 3 and (len(ends) > 1 or before.score > GOOD)


@pytest.mark.parametrize("field, value, goes_on", [
  ("score", GOOD, True), ("score", 0.96, False), ("stale", FRUITLESS - 1, True),
  ("stale", FRUITLESS, False), ("tried", TRIES - 1, True), ("tried", TRIES, False),
])  # fmt: skip
def test_the_search_ends_as_published(field, value, goes_on):
  search = begin(L)
  search = search._replace(**{field: jnp.asarray(value, getattr(search, field).dtype)})
  assert bool(unfinished(search)) == goes_on


@pytest.mark.full
@pytest.mark.parametrize("ended", [False, True], ids=["searching", "ended"])
def test_a_search_that_has_ended_costs_nothing(ended):
  """The passes that run some layers over several rows are those of the search."""
  wide = []

  def run_some(*x, **more):
    if x[1].shape[1] > 1:
      jax.debug.callback(lambda _: wide.append(1), x[1])
    return OWN.run_some(*x, **more)

  own = dataclasses.replace(OWN, run_some=run_some)
  search = begin(L)._replace(tried=jnp.int32(TRIES if ended else 0))
  weights, state = start(search, own=own)
  state = speculate.compiled_advance(method(own=own), weights, REQUEST, state, jnp.int32(9))
  jax.effects_barrier()
  now = searches(state)[0]
  assert len(wide) == (0 if ended else now.tried) and (ended or now.tried > 0)
  if ended:
    np.testing.assert_array_equal(now.run, np.asarray(search.run))


@pytest.mark.full
def test_later_requests_and_rows_go_on_with_what_was_found():
  drafter = method().drafter
  weights, begun = start()
  *_, state = rounds(begun, weights, 9)
  found = searches(state)[0]
  kept = drafter.keep(weights.drafter, state.drafter, context=state.context)
  assert int(kept.tried) == int(found.tried) > 0 and int(kept.age) == 0
  np.testing.assert_array_equal(kept.run, found.run)
  # A row that is filled anew knows nothing, and learns it in the next round.
  fresh = start()[1]
  first = jnp.arange(B) == 0
  mixed = jax.tree.map(
    lambda old, new: jnp.where(first.reshape(-1, *[1] * (old.ndim - 1)), new, old),
    state.drafter, fresh.drafter,
  )  # fmt: skip
  state = state._replace(drafter=mixed)
  state = speculate.compiled_advance(method(), weights, REQUEST, state, jnp.int32(1))
  both = searches(state)
  assert both[0].tried == both[1].tried >= found.tried


@pytest.mark.full
def test_a_new_turn_begins_its_own_window():
  drafter = method().drafter
  weights, begun = start()
  *_, state = rounds(begun, weights, 9)
  assert (np.asarray(state.drafter.written) > 0).all()
  read = drafter.read((), PARAMS, state.drafter, draft=None, evaluation=None, verdict=None,
                      rows=jnp.array([3, 0]))  # fmt: skip
  assert int(read.written[0]) == 0 == int(read.end[0])
  assert int(read.written[1]) == int(state.drafter.written[1])
