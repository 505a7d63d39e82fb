"""The compiled loop with its real noise: many requests of one prompt, against the target's law.

What exact enumeration cannot see, since it replaces the noise: streams or positions that share
random bits, within a round or between rounds.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax import speculate
from specjax.drafters import draft_model
from specjax.sampling import COIN, DRAFT, RESIDUAL, Noise, Settings, request_keys
from specjax.testing import Case, random_table, table_model, target_law
from specjax.verifiers import target_only, token

B, V, L = 2**15, 3, 4  # a chain of 1 needs two rounds or more for four tokens
SUSPICIOUS = 1e-6
TABLE, DRAFT_TABLE = random_table(0, V), random_table(100, V)
DRAFTER, TARGET_ONLY, TOKEN = draft_model(table_model(V), 1), target_only(), token()
CASE = Case(np.asarray(TABLE["logits"]), prompt=(0, 2), length=L, temperature=0.9, top_p=0.95)


def p_value(verifier, source=Noise) -> float:
  """Of the sequences that B requests emit, under the target's law."""
  method = speculate.method(table_model(V), DRAFTER, verifier)
  weights = speculate.Weights(TABLE, DRAFT_TABLE)
  P = len(CASE.prompt)

  def full(value: float, dtype=jnp.float32):
    return jnp.full(B, value, dtype)

  request = speculate.Request(
    Settings(full(CASE.temperature), full(0, jnp.int32), full(CASE.top_p), full(0.0)),
    request_keys(1, np.arange(B)), full(P + L, jnp.int32), jnp.array([-1]),
  )  # fmt: skip
  tokens = jnp.broadcast_to(jnp.array([CASE.prompt]), (B, P))
  capacity = speculate.capacity_for(P, L, 1)
  state = speculate.compiled_start(method, weights, tokens, full(P, jnp.int32), request, capacity)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(L), source=source)
  assert int(state.stats.forwards.max()) >= 3
  assert int(state.stats.accepted[:, 1].sum()) > B // 2

  got = np.asarray(state.context.tokens)[:, P : P + L] @ V ** np.arange(L)
  observed = np.bincount(got, minlength=V**L)
  expected = np.zeros(V**L)
  for sequence, p in target_law(CASE).items():
    expected[np.array(sequence) @ V ** np.arange(L)] = B * p
  assert observed[expected == 0].sum() == 0
  rare = expected < 5
  observed = np.append(observed[~rare], observed[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  keep = expected > 0
  return float(stats.chisquare(observed[keep], expected[keep], sum_check=False).pvalue)


@pytest.mark.parametrize("verifier", [TARGET_ONLY, TOKEN], ids=lambda v: v.name)
def test_the_compiled_loop_draws_from_the_target(verifier):
  assert p_value(verifier) > SUSPICIOUS


class Shared(NamedTuple):
  """Noise in which some streams are one."""

  noise: Noise
  merged: dict[int, int]

  def choose(self, law, depth):
    return self.noise.choose(law, depth)

  def draw(self, stream, law):
    return self.noise.draw(self.merged.get(stream, stream), law)

  def accept(self, stream, p, q):
    return self.noise.accept(self.merged.get(stream, stream), p, q)


def the_same_in_every_round(key, position):
  return Noise(key, jnp.zeros_like(position))


def residual_reuses_the_drafts(key, position):
  return Shared(Noise(key, position), {RESIDUAL: DRAFT})


def coin_reuses_the_drafts(key, position):
  return Shared(Noise(key, position), {COIN: DRAFT})


def off_by_one(key, position):
  # The token after a full acceptance shares its noise with the next round's first.
  return Noise(key, position - jnp.asarray(position > len(CASE.prompt), jnp.int32))


@pytest.mark.parametrize(
  ("verifier", "source"),
  [
    (TARGET_ONLY, the_same_in_every_round),
    (TOKEN, the_same_in_every_round),
    (TOKEN, residual_reuses_the_drafts),
    (TOKEN, coin_reuses_the_drafts),
    (TARGET_ONLY, off_by_one),
  ],
  ids=lambda x: getattr(x, "name", None) or x.__name__,
)
def test_shared_randomness_is_seen(verifier, source):
  assert p_value(verifier, source) < SUSPICIOUS
