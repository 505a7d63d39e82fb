"""The compiled loop with its real noise: many requests of one prompt, tested by chi-square."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree
from specjax.sampling import COIN, DRAFT, RESIDUAL, Noise
from specjax.testing import Case, p_value, random_table, table_model
from specjax.trees import StochasticBeam, WithoutReplacement
from specjax.verifiers import block, recursive, target_only, token, traversal

V, L = 3, 4  # a chain of 1 needs two rounds or more for four tokens
SUSPICIOUS = 1e-6
TABLE, DRAFT_TABLE = random_table(0, V), random_table(100, V)
TARGET_ONLY, TOKEN, RECURSIVE, TRAVERSAL = target_only(), token(), recursive(), traversal()
CHAIN = {depth: draft_model(table_model(V), depth + 1) for depth in (1, 2)}
PAIR = draft_tree(table_model(V), WithoutReplacement(((0,), (1,))))
BEAM = draft_tree(table_model(V), StochasticBeam(width=2, depth=2))
CASE = Case(np.asarray(TABLE["logits"]), prompt=(0, 2), length=L, temperature=0.9, top_p=0.95)


def p_of(drafter, verifier, source=Noise, requests=2**15) -> float:
  method = pair(table_model(V), drafter, verifier)
  return p_value(CASE, method, DRAFT_TABLE, source=source, requests=requests)


@pytest.mark.slow
@pytest.mark.full(but=["draft_model-target_only"])
@pytest.mark.parametrize(
  ("drafter", "verifier"),
  [
    (CHAIN[1], TARGET_ONLY),
    (CHAIN[1], TOKEN),
    (CHAIN[2], block()),
    (PAIR, RECURSIVE),
    (PAIR, TRAVERSAL),
    # Its noise is continuous: samples are all the proof there is.
    (BEAM, RECURSIVE),
    (BEAM, TRAVERSAL),
  ],
  ids=lambda x: x.name,
)
def test_the_compiled_loop_draws_from_the_target(drafter, verifier):
  assert p_of(drafter, verifier) > SUSPICIOUS


@pytest.mark.slow
@pytest.mark.full(but=["rbg"])
@pytest.mark.parametrize(
  "values",
  [
    {"jax_default_prng_impl": "rbg"},
    {"jax_default_prng_impl": "unsafe_rbg"},
    {"jax_enable_x64": True},
    {"jax_threefry_partitionable": False},
  ],
  ids=lambda x: "-".join(map(str, x.values())),
)
def test_its_law_is_that_under_every_generator(values, switch):
  """Rows that shared their noise would be as far from the law as one row is."""
  switch(values)
  method = pair(table_model(V), CHAIN[1], TARGET_ONLY)
  assert p_value(CASE, method, DRAFT_TABLE, requests=2**11) > SUSPICIOUS


class Shared(NamedTuple):
  """Noise in which some streams are one."""

  noise: Noise
  merged: dict[int, int]

  def choose(self, log_probs, depth):
    return self.noise.choose(log_probs, depth)

  def draw(self, stream, log_probs):
    return self.noise.draw(self.merged.get(stream, stream), log_probs)

  def accept(self, stream, p, q):
    return self.noise.accept(self.merged.get(stream, stream), p, q)


class OneCoin(Noise):
  """All coins of a round are one."""

  def accept(self, stream, p, q):
    u = jax.vmap(lambda k: jax.random.uniform(k, (1,)))(self._round(COIN))
    return u * q < p


def the_same_in_every_round(key, position):
  return Noise(key, jnp.zeros_like(position))


def residual_reuses_the_drafts(key, position):
  return Shared(Noise(key, position), {RESIDUAL: DRAFT})


class CoinReusesTheDraft(Noise):
  """A coin falls by the noise that drew the token."""

  def accept(self, stream, p, q):
    of_member = jax.vmap(jax.random.split)(self._round(DRAFT))[:, 1]
    return jax.vmap(lambda k: jax.random.uniform(k, (1,)))(of_member) * q < p


def off_by_one(key, position):
  # The token after a full acceptance shares its noise with the next round's first.
  return Noise(key, position - jnp.asarray(position > len(CASE.prompt), jnp.int32))


@pytest.mark.full(but=["*-target_only-the_same_in_every_round", "*-CoinReusesTheDraft"])
@pytest.mark.parametrize(
  ("drafter", "verifier", "source"),
  [
    (CHAIN[1], TARGET_ONLY, the_same_in_every_round),
    (CHAIN[1], TOKEN, the_same_in_every_round),
    (CHAIN[1], TOKEN, residual_reuses_the_drafts),
    (CHAIN[1], TOKEN, CoinReusesTheDraft),
    (CHAIN[1], TARGET_ONLY, off_by_one),
    (CHAIN[2], TOKEN, OneCoin),
  ],
  ids=lambda x: getattr(x, "name", None) or x.__name__,
)
def test_shared_randomness_is_seen(drafter, verifier, source):
  assert p_of(drafter, verifier, source, requests=2**13) < SUSPICIOUS


@pytest.mark.full
def test_siblings_of_a_beam_must_be_in_the_order_of_their_draws():
  def propose(params, target_params, state, context, settings, noise):
    draft, state = BEAM.propose(params, target_params, state, context, settings, noise)
    swap = jnp.array([0, 2, 1, *range(3, BEAM.nodes)])
    tokens, valid, log_probs = (x[:, swap] for x in (draft.tokens, draft.valid, draft.log_probs))
    parent = swap[draft.parent]
    return draft._replace(tokens=tokens, valid=valid, log_probs=log_probs, parent=parent), state

  assert p_of(BEAM._replace(propose=propose), RECURSIVE) < SUSPICIOUS
