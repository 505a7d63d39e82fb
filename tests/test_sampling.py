"""Logits to distribution, and distribution to tokens."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.sampling import (
  COIN,
  DRAFT,
  RESIDUAL,
  Noise,
  Settings,
  likeliest,
  most_likely,
  request_keys,
  warp,
)  # fmt: skip
from specjax.testing.enumerate import next_distribution

V = 12


def settings_of(rows) -> Settings:
  """Settings of (temperature, top_k, top_p, min_p[, typical_p]) per row."""
  temperature, top_k, top_p, min_p, *typical_p = zip(*rows, strict=True)
  return Settings(
    jnp.asarray(temperature, jnp.float32), jnp.asarray(top_k, jnp.int32),
    jnp.asarray(top_p, jnp.float32), jnp.asarray(min_p, jnp.float32),
    *(jnp.asarray(x, jnp.float32) for x in typical_p),
  )  # fmt: skip


def log_probs_of(logits, *row) -> np.ndarray:
  """Probabilities f[V] of one row of logits [V] under the settings of a row."""
  return np.exp(np.asarray(warp(jnp.asarray(logits)[None, None], settings_of([row]))[0, 0]))


def test_the_distribution_equals_the_oracle():
  values = (0.0, 0.3, 1.0, 2.5), (0, 1, 4, V, 50), (1.0, 0.9, 0.35), (0.0, 0.1), (1.0, 0.83, 0.2)
  grid = list(itertools.product(*values))
  logits = np.random.default_rng(0).normal(size=(len(grid), 3, V)).astype(np.float32) * 2
  logits[:, 1] = np.round(logits[:, 1])  # ties, and -0 beside 0
  logits[:, 2, ::4] = -np.inf
  got = np.asarray(jax.jit(warp)(logits, settings_of(grid)))
  assert not np.isnan(got).any()
  for b, row in enumerate(grid):
    for i in range(3):
      want = next_distribution(logits[b, i], *row)
      np.testing.assert_array_equal(np.isneginf(got[b, i]), want == 0)
      np.testing.assert_allclose(np.exp(got[b, i]), want, rtol=2e-5)


@pytest.mark.parametrize(
  ("row", "want"),
  [
    ((1.0, 0, 1.0, 0.0), [0.4, 0.3, 0.2, 0.1]),
    ((1.0, 2, 1.0, 0.0), [4 / 7, 3 / 7, 0, 0]),
    ((1.0, 0, 0.7, 0.0), [4 / 7, 3 / 7, 0, 0]),
    ((1.0, 0, 0.71, 0.0), [4 / 9, 3 / 9, 2 / 9, 0]),
    ((1.0, 0, 0.01, 0.0), [1, 0, 0, 0]),
    ((1.0, 0, 1.0, 0.6), [4 / 7, 3 / 7, 0, 0]),
    # Temperature comes first: squared, 0.4 alone has more than half of the mass.
    ((0.5, 0, 0.5, 0.0), [1, 0, 0, 0]),
    # top-k before top-p: of the two kept, the first has 4 / 7 > 0.55.
    ((1.0, 2, 0.55, 0.0), [1, 0, 0, 0]),
    ((0.0, 3, 0.9, 0.5), [1, 0, 0, 0]),
    # H is 1.28 nats; the surprises are 0.92, 1.20, 1.61 and 2.30, so 0.3 is the most typical.
    ((1.0, 0, 1.0, 0.0, 0.2), [0, 1, 0, 0]),
    ((1.0, 0, 1.0, 0.0, 0.45), [0, 3 / 5, 2 / 5, 0]),
    # typical-p comes last: of 4 / 7 and 3 / 7, H is 0.68 and the surprises 0.56 and 0.85.
    ((1.0, 2, 1.0, 0.0, 0.2), [1, 0, 0, 0]),
    ((0.0, 0, 1.0, 0.0, 0.2), [1, 0, 0, 0]),
  ],
)  # fmt: skip
def test_the_order_of_the_settings(row, want):
  logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
  # At 0.7 exactly, rounding decides whether the mass is reached.
  row = (*row[:2], row[2] - 1e-4 if row[2] == 0.7 else row[2], *row[3:])
  np.testing.assert_allclose(log_probs_of(logits, *row), want, atol=1e-6)


def test_ties_go_to_the_lower_id():
  tied = np.zeros(5, np.float32)
  np.testing.assert_allclose(log_probs_of(tied, 1.0, 2, 1.0, 0.0), [0.5, 0.5, 0, 0, 0], atol=1e-7)
  np.testing.assert_allclose(log_probs_of(tied, 1.0, 0, 0.5, 0.0), [1 / 3] * 3 + [0, 0], atol=1e-7)
  np.testing.assert_allclose(log_probs_of(tied, 0.0, 0, 1.0, 0.0), [1, 0, 0, 0, 0])
  np.testing.assert_allclose(log_probs_of(tied, 1.0, 0, 1.0, 1.0), [0.2] * 5, atol=1e-7)
  typical = log_probs_of(tied, 1.0, 0, 1.0, 0.0, 0.5)
  np.testing.assert_allclose(typical, [1 / 3] * 3 + [0, 0], atol=1e-7)


@pytest.mark.parametrize("size", [12, 1024, 1500])  # none, whole and filled groups
def test_the_first_of_equals_is_the_most_likely(size):
  scores = np.random.default_rng(0).integers(0, 9, (2, 3, size)).astype(np.float32)
  scores[0, 0] = -np.inf
  scores[0, 1, [300 % size, size - 1]] = 99
  np.testing.assert_array_equal(jax.jit(most_likely)(scores), scores.argmax(-1))


@pytest.mark.parametrize("size", [12, 4096, 4321])  # none, whole and filled groups
def test_the_likeliest_are_in_order_and_of_equals_the_first_comes_first(size):
  scores = np.random.default_rng(0).integers(0, size // 3, (2, 3, size)).astype(np.float32)
  scores[0, 0] = 5
  want = np.argsort(-scores, -1, kind="stable")[..., :4]
  got = jax.jit(likeliest, static_argnums=1)(scores, 4)
  np.testing.assert_array_equal(got, want)


def test_a_row_does_not_see_the_settings_of_others():
  rows = [
    (0.0, 0, 1.0, 0.0, 0.3), (0.7, 0, 1.0, 0.0, 1.0), (1.0, 3, 0.8, 0.0, 1.0),
    (1.3, 0, 1.0, 0.2, 1.0), (1.0, 0, 1.0, 0.0, 0.4),
  ]  # fmt: skip
  logits = np.random.default_rng(1).normal(size=(5, 2, V)).astype(np.float32)
  together = warp(jnp.asarray(logits), settings_of(rows))
  for b, row in enumerate(rows):
    alone = warp(jnp.asarray(logits[b : b + 1]), settings_of([row]))
    np.testing.assert_allclose(together[b], alone[0], rtol=1e-6)


@pytest.mark.slow
def test_choose_and_draw_follow_the_distribution():
  B = 20_000
  p = np.array([0.5, 0.3, 0.2, 0.0])
  log_probs = jnp.broadcast_to(jnp.log(jnp.asarray(p, jnp.float32)), (B, 2, 4))
  noise = Noise(request_keys(0, np.arange(B)), jnp.full(B, 7))
  chosen = np.asarray(noise.choose(log_probs, jnp.broadcast_to(jnp.array([0, 1]), (B, 2))))
  drawn = np.stack([noise.draw(s, log_probs[:, 0]) for s in (RESIDUAL, DRAFT, DRAFT + 1)], 1)
  columns = np.concatenate([chosen, drawn], 1)
  for i in range(5):
    count = np.bincount(columns[:, i], minlength=4)
    assert count[3] == 0
    assert stats.chisquare(count[:3], B * p[:3]).pvalue > 1e-6
  for i, j in itertools.combinations(range(5), 2):
    joint = np.histogram2d(columns[:, i], columns[:, j], bins=np.arange(-0.5, 3))[0]
    assert stats.chi2_contingency(joint).pvalue > 1e-6, (i, j)


@pytest.mark.slow
def test_a_token_is_drawn_from_all_groups_of_a_large_vocabulary():
  B, size = 50_000, 700  # two full groups of 256 and a part of one
  p = np.random.default_rng(3).dirichlet(np.full(size, 0.05))
  p[256:512:2] = 0
  p /= p.sum()
  log_probs = jnp.broadcast_to(jnp.log(jnp.asarray(p, jnp.float32)), (B, size))
  drawn = np.asarray(Noise(request_keys(5, np.arange(B)), jnp.full(B, 2)).draw(DRAFT, log_probs))
  count = np.bincount(drawn, minlength=size)
  assert count.size == size and not count[p == 0].any()
  often = B * p > 5
  assert often[:256].any() and often[256:512].any() and often[512:].any()
  got = np.append(count[often], count[~often].sum())
  want = np.append(p[often], p[~often].sum())
  assert stats.chisquare(got, B * want).pvalue > 1e-6


def test_choose_depends_on_the_position_alone():
  log_probs = jax.nn.log_softmax(jax.random.normal(jax.random.key(1), (1, 1, 1000)))
  log_probs = jnp.broadcast_to(log_probs, (1, 3, 1000))
  keys = request_keys(0, [3])
  a = Noise(keys, jnp.array([5])).choose(log_probs, jnp.array([[0, 1, 1]]))[0]
  b = Noise(keys, jnp.array([6])).choose(log_probs, jnp.array([[0, 1, 2]]))[0]
  assert a[1] == a[2] == b[0]
  assert len({int(x) for x in (a[0], b[0], b[1], b[2])}) == 4


def test_accept_is_strict_and_needs_no_division():
  B = 4000
  noise = Noise(request_keys(0, np.arange(B)), jnp.full(B, 3))
  p = jnp.broadcast_to(jnp.array([[0.0, 0.0, 0.3, 0.4, 0.1]]), (B, 5))
  q = jnp.broadcast_to(jnp.array([[0.0, 0.5, 0.0, 0.2, 0.4]]), (B, 5))
  passed = np.asarray(noise.accept(COIN, p, q))
  assert passed.sum(0)[:4].tolist() == [0, 0, B, B]
  assert stats.binomtest(int(passed[:, 4].sum()), B, 0.25).pvalue > 1e-6


def test_a_request_has_its_key_whatever_its_batch():
  keys = jax.random.key_data(request_keys(1, [4, 2, 9]))
  np.testing.assert_array_equal(jax.random.key_data(request_keys(1, [2]))[0], keys[1])
  others = [jax.random.key_data(request_keys(s, [2]))[0] for s in (0, 2)]
  assert len({tuple(map(int, x)) for x in (*keys, *others)}) == 5


def test_a_draw_does_not_see_the_batch():
  @jax.jit
  def everything(keys, position, log_probs, depth):
    noise = Noise(keys, position)
    p = jnp.full((len(log_probs), 20), 0.5)
    draws = [noise.draw(stream, log_probs[:, 0]) for stream in (RESIDUAL, DRAFT)]
    return noise.choose(log_probs, depth), *draws, noise.accept(COIN, p, jnp.ones_like(p))

  log_probs = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (3, 2, 50)))
  rows = request_keys(3, [5, 6, 7]), jnp.array([4, 9, 2]), log_probs, jnp.array([[0, 1]] * 3)
  together = everything(*rows)
  for b in range(3):
    alone = everything(*(x[b : b + 1] for x in rows))
    for got, want in zip(alone, together, strict=True):
      np.testing.assert_array_equal(got[0], want[b])


EXTREMES = [  # (settings of a row, the tokens of probability above 0, of logits 1 to 6 and -inf)
  ((3e-38, 0, 1.0, 0.0, 1.0), [5]), ((1.2e-38, 3, 0.9, 0.1, 0.5), [5]),
  ((1e-30, 0, 1.0, 0.0, 1.0), [5]), ((3.4e38, 0, 1.0, 0.0, 1.0), [0, 1, 2, 3, 4, 5]),
  ((3.4e38, 2, 1.0, 0.0, 1.0), [4, 5]), ((3.4e38, 0, 0.5, 0.0, 1.0), [3, 4, 5]),
  ((1.0, 2**31 - 1, 1.0, 0.0, 1.0), [0, 1, 2, 3, 4, 5]), ((1.0, 0, 1.2e-38, 0.0, 1.0), [5]),
  ((1.0, 0, 1.0, 1.2e-38, 1.0), [0, 1, 2, 3, 4, 5]), ((1.0, 0, 1.0, 0.9999999, 1.0), [5]),
  ((1.0, 0, 0.99999999, 0.0, 1.0), [0, 1, 2, 3, 4, 5]), ((1.0, 0, 1.0, 0.0, 1.2e-38), [4]),
]  # fmt: skip


@pytest.mark.parametrize("shift", [0.0, -40.0, 90.0])  # below 0, above it and at it
def test_numbers_at_their_ends_have_the_limits_distribution(shift):
  logits = np.append(np.arange(1, 7), -np.inf).astype(np.float32) + np.float32(shift)
  logits = np.broadcast_to(logits, (len(EXTREMES), 1, 7))
  got = np.exp(jax.jit(warp)(logits, settings_of([row for row, _ in EXTREMES])))[:, 0]
  np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
  for p, (row, want) in zip(got, EXTREMES, strict=True):
    assert np.flatnonzero(p).tolist() == want, row


def test_equal_logits_stay_equal_at_a_tiny_temperature():
  np.testing.assert_allclose(log_probs_of([7.0, 7.0, 3.0], 3e-38, 0, 1.0, 0.0), [0.5, 0.5, 0])
