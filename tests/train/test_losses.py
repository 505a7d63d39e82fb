"""Every term of the loss against numpy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.heads.base import LossWeights
from specjax.train.recipe import losses

P, V, E = 40, 12, 5
RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.normal(size=(2, P, V)).astype(np.float32) * 3
STATE, HIDDEN = RNG.normal(size=(2, P, E)).astype(np.float32) * 2
LABELS = RNG.integers(0, V, P).astype(np.int32)
WEIGHT = (RNG.random(P) < 0.7).astype(np.float32)


def log_softmax(x: np.ndarray) -> np.ndarray:
  x = x.astype(np.float64)
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mean(values, weight) -> float:
  kept = [v * w for v, w in zip(values, weight, strict=True) if w]
  return sum(kept) / sum(weight) if kept else 0.0


def hard(logits=LOGITS):
  return [-row[label] for row, label in zip(log_softmax(logits), LABELS, strict=True)]


def soft(logits=LOGITS):
  return -(np.exp(log_softmax(TEACHER)) * log_softmax(logits)).sum(-1)


def smooth(state=STATE):
  error = np.abs(state.astype(np.float64) - HIDDEN)
  return np.where(error < 1, error**2 / 2, error - 0.5).mean(-1)


def minima(logits=LOGITS):
  """What is accepted, sum of min(p, q), token by token."""
  p, q = np.exp(log_softmax(TEACHER)), np.exp(log_softmax(logits))
  return np.array([sum(map(min, *rows)) for rows in zip(p, q, strict=True)])


def reverse(logits=LOGITS):
  log_q, log_p = log_softmax(logits), log_softmax(TEACHER)
  return np.array([sum(np.exp(b) * (b - a)) for a, b in zip(log_p, log_q, strict=True)])


def sure():
  p = 1 / (1 + np.exp(-ODDS.astype(np.float64)))
  return -(minima() * np.log(p) + (1 - minima()) * np.log(1 - p))


ODDS = RNG.normal(size=P).astype(np.float32)
GUESS = losses.Guess(*map(jnp.asarray, (STATE, LOGITS, LABELS, TEACHER, HIDDEN, ODDS)))
CASES = {
  "hard": hard(), "soft": soft(), "feature": smooth(), "tv": 1 - minima(), "reverse_kl": reverse(),
  "lk": -np.log(minima()), "confidence": sure(),
}  # fmt: skip
ALL = pytest.mark.parametrize(("name", "rows"), CASES.items(), ids=CASES)


def test_every_term_is_here():
  assert CASES.keys() == losses.TERMS.keys()


@ALL
def test_a_term_is_its_formula(name, rows):
  term = jax.jit(losses.TERMS[name])
  for weight in (WEIGHT, np.ones(P, np.float32), np.eye(P, dtype=np.float32)[7]):
    got = term(GUESS, weight)
    assert got.dtype == jnp.float32 and got.shape == ()
    np.testing.assert_allclose(got, mean(rows, weight), rtol=1e-5)


@ALL
def test_a_term_of_nothing_is_nothing(name, rows):
  def term(moved):
    return losses.TERMS[name](GUESS._replace(state=moved[0], logits=moved[1]), jnp.zeros(P))

  value, gradient = jax.value_and_grad(term)((GUESS.state, GUESS.logits))
  assert value == 0 and not any(g.any() for g in gradient)


@pytest.mark.parametrize("name", ["hard", "soft", "tv", "reverse_kl", "lk"])
def test_extreme_logits_stay_finite(name):
  def term(logits):
    return losses.TERMS[name](GUESS._replace(logits=logits), WEIGHT)

  value, gradient = jax.value_and_grad(term)(GUESS.logits * 1e4)
  assert np.isfinite(value) and np.isfinite(gradient).all()


def test_half_precision_states_are_compared_in_float32():
  """In float16 the differences of these states would overflow or vanish."""
  x = jnp.asarray([[6e4, 1.0]], jnp.float16)
  y = jnp.asarray([[-6e4, 1.0 + 2**-10]], jnp.float16)
  got = losses.feature(GUESS._replace(state=x, hidden=y), jnp.ones(1))
  far, near = (np.float64(x[0, i]) - np.float64(y[0, i]) for i in range(2))
  np.testing.assert_allclose(got, (abs(far) - 0.5 + near**2 / 2) / 2, rtol=1e-6)
  assert got.dtype == jnp.float32


@pytest.mark.parametrize(
  ("decay", "depth", "want"),
  [(0.8, 3, [1, 0.8, 0.64]), (1.0, 2, [1, 1]), (0.0, 3, [1, 0, 0]), (0.5, 1, [1])],
)
def test_depths_weigh_a_power_of_the_decay(decay, depth, want):
  np.testing.assert_allclose(losses.depth_weights(decay, depth), want)


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.25, 2)])
def test_the_loss_is_the_sum_of_its_terms(weights):
  got = losses.total(losses.chosen((*weights, 0.8)), GUESS, WEIGHT)
  terms = [mean(rows, WEIGHT) for rows in (hard(), soft(), smooth())]
  np.testing.assert_allclose(got, np.dot(weights, terms), rtol=1e-5)


def test_states_of_another_width_are_free_where_no_feature_is_asked_for():
  wide = GUESS._replace(state=jnp.ones((P, E + 1)))
  got = losses.total(LossWeights(), wide, WEIGHT)
  np.testing.assert_allclose(got, mean(hard(), WEIGHT), rtol=1e-5)


def test_a_new_term_is_a_function_and_a_row(monkeypatch):
  monkeypatch.setitem(losses.TERMS, "norm", lambda x, weight: losses.mean(x.state[:, 0], weight))
  want = mean(hard(), WEIGHT) + 0.5 * mean(STATE[:, 0], WEIGHT)
  numbers = [0] * len(CASES)
  for weights in (LossWeights(norm=0.5), losses.chosen((1, *numbers[1:], 0.5, 0.8))):
    np.testing.assert_allclose(losses.total(weights, GUESS, WEIGHT), want, rtol=1e-5)


def test_weights_are_read_in_the_order_of_the_table():
  weights = losses.chosen((0, 2.0, 0.6))
  assert weights.terms == {"hard": 0, "soft": 2.0} and weights.decay == 0.6
  for numbers in ((0.8,), (1,) * 8 + (0.8,)):
    with pytest.raises(
      ValueError,
      match=(r"`loss` must be weights of hard, soft, feature, tv,.*got (0|1 1 1 1 1 1 1 1 0)\.8\."),
    ):
      losses.chosen(numbers)
  with pytest.raises(ValueError, match=r"`loss` must be one of hard, soft, feature.*, got 'sfot'"):
    losses.total(LossWeights(sfot=1.0), GUESS, WEIGHT)


def test_a_confidence_moves_itself_alone():
  """Neither the guesses nor a head without one are trained by it."""

  def term(logits, odds):
    return losses.confidence(GUESS._replace(logits=logits, log_odds=odds), WEIGHT)

  of_logits, of_odds = jax.grad(term, (0, 1))(GUESS.logits, GUESS.log_odds)
  assert not of_logits.any()
  want = (1 / (1 + np.exp(-ODDS)) - minima()) * WEIGHT / WEIGHT.sum()
  np.testing.assert_allclose(of_odds, want, atol=1e-6)
  assert losses.confidence(GUESS._replace(log_odds=None), WEIGHT) == 0


@pytest.mark.parametrize(
  ("words", "want"),
  [
    (("tv=0.9", "hard=.1", "decay=0.78"), ({"hard": 0.1, "tv": 0.9}, 0.78, 3, None)),
    (("lk=1",), ({"hard": 0, "lk": 1}, 0.6, 3, None)),
    (("hard=1", "dpace=0.5"), ({"hard": 1}, 1.0, 3, 0.5)),
    (("soft=2", "within=4"), ({"hard": 0, "soft": 2}, 0.6, 4, None)),
    (("soft=1", "units=0.9"), ({"hard": 0, "soft": 1}, 0.6, 3, None)),
  ],
)
def test_weights_are_read_by_name(words, want):
  got = losses.chosen(words, LossWeights(decay=0.6, within=3))
  assert (got.terms, got.decay, got.within, got.dpace) == want
  assert got.units == (0.9 if "units=0.9" in words else 0)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("tv=1", 0.5), r"`loss` must be NAME=NUMBER for names among hard, .*got tv=1 0.5\."),
    (("vt=1",), r"`loss` must be NAME=NUMBER for names among hard, .*got vt=1\."),
    (("tv=1", "tv=2"), r"each once.*got tv=1 tv=2\."),
    (("tv=x",), r"`loss`: tv must be a number, got 'x'\."),
    (("tv=-1",), r"loss: `tv` must be at least 0, got -1.0\."),
    (("tv=1", "dpace=2"), r"loss: `dpace` must be .* 0 .* 1, got 2.0\."),
    (("tv=1", "units=2"), r"loss: `units` must be .* 0 .* 1, got 2.0\."),
    (("decay=1",), r"`loss` must have a weight above 0 for at least one term, got decay=1\."),
  ],
)
def test_words_that_are_no_weights_are_refused(words, message):
  with pytest.raises(ValueError, match=message):
    losses.chosen(words)


def test_dpace_weighs_a_depth_by_what_it_adds_to_the_length():
  """Its weights are the gradient of the expected length by the logarithm of each probability."""
  rng = np.random.default_rng(1)
  right, counts = rng.random((4, P)), (rng.random((4, P)) < 0.8).astype(float)
  alpha = 0.3
  got = np.stack(losses.dpace(list(map(jnp.asarray, right)), list(map(jnp.asarray, counts)), alpha))
  for p in range(P):
    q = [1 - (1 - alpha) * (1 - right[d, p]) if counts[d, p] else 1.0 for d in range(4)]
    for j in range(4):
      reached = [np.prod(q[: m + 1]) for m in range(j, 4) if counts[m, p]]
      assert got[j, p] == pytest.approx(sum(reached) * counts[j, p], rel=1e-5)
  weights = losses.chosen(("hard=2", "dpace=0.3"))
  share = jnp.asarray(rng.random(P) * 3, jnp.float32)
  found = losses.weighted(weights, GUESS, WEIGHT, share)
  want = 2 * (np.array(hard()) * WEIGHT * np.array(share)).sum() / WEIGHT.sum()
  np.testing.assert_allclose(found, want, rtol=1e-5)
