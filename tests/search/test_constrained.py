"""Weighted samples against all orders of a vocabulary, and all texts, one by one."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from test_conversation import CONFIG, random_model
from test_switching import after

import specjax
from specjax.search.constrained import draw, effective, resampled

V, NEW, T, PROMPT = 4, 3, 1.3, [1, 2]
TINY = random_model(dataclasses.replace(CONFIG, vocab_size=V, layers=1), stop=(0,))
TINY = dataclasses.replace(TINY, params=jax.tree.map(lambda x: 0.5 * x, TINY.params))
LAWS = {
  "even": (0.25, 0.25, 0.25, 0.25), "peaked": (0.9, 0.06, 0.03, 0.01),
  "without a token": (0.0, 0.5, 0.2, 0.3),
}  # fmt: skip


def orders(p):
  """(probability, noise) of every order in which tokens are drawn without replacement."""
  support = np.flatnonzero(p)
  for order in itertools.permutations(support):
    left, chance, noise = 1.0, 1.0, np.zeros(len(p))
    for rank, token in enumerate(order):
      chance, left = chance * p[token] / left, left - p[token]
      noise[token] = -10.0 * rank - np.log(p[token])
    yield chance, noise


@pytest.mark.parametrize("p", LAWS.values(), ids=LAWS)
def test_a_token_has_the_right_weight_over_all_orders(p):
  p = np.array(p)
  log_p = np.log(p, out=np.full(V, -np.inf), where=p > 0)
  for accepted in itertools.product([False, True], repeat=V):
    mean = np.zeros(V)
    for chance, noise in orders(p):
      asked = []

      def allowed(token, asked=asked, accepted=accepted):
        asked.append(token)
        return accepted[token]

      token, weight = draw(log_p, noise, allowed)
      if token is not None:
        mean[token] += chance * np.exp(weight)
        assert sum(accepted[t] for t in asked) in (1, 2) and accepted[token]
      else:
        assert weight == -np.inf and set(asked) == set(np.flatnonzero(p))
      assert len(asked) == len(set(asked))
    np.testing.assert_allclose(mean, p * np.array(accepted), atol=1e-12)


def allowed(ids):
  """A first token 2, which is likely, has one continuation only, which is not."""
  return ids[0] != 2 or ids == (2, 1, 3)[: len(ids)]


def every_text(rule, masked=False, text=()):
  """{text: probability} of those that are allowed, each prefix masked or not."""
  if len(text) == NEW or text[-1:] == (0,):
    return {text: 1.0}
  scaled = after(TINY, [*PROMPT, *text]) / T
  p = np.exp(scaled - scaled.max())
  p = p / p.sum() * np.array([rule((*text, t)) for t in range(V)])
  p = p / p.sum() if masked else p
  return {
    whole: p[t] * more for t in range(V) if p[t]
    for whole, more in every_text(rule, masked, (*text, t)).items()
  }  # fmt: skip


def distance(a, b):
  """Total variation of two laws that are not normalised."""
  x, y = (np.array([law.get(k, 0.0) for k in {**a, **b}]) for law in (a, b))
  return abs(x / x.sum() - y / y.sum()).sum() / 2


@pytest.mark.full(but=["0.5"])
@pytest.mark.parametrize("resample", [0.0, 0.5, 1.0])
def test_the_weights_are_those_of_the_constrained_law(resample):
  runs, K = 300, 8
  want, masked = every_text(allowed), every_text(allowed, masked=True)
  every = specjax.search.constrained(
    TINY, [PROMPT] * runs, allowed, K, NEW, temperature=T, resample=resample, seed=3
  )
  found = np.zeros((runs, len(want)))
  place = {text: i for i, text in enumerate(want)}
  for run, particles in zip(found, every, strict=True):
    assert sum(x.share for x in particles) == pytest.approx(1)
    for x in particles:
      if x.share > 0:
        run[place[tuple(x.tokens)]] += np.exp(x.log_weight) / K
  mass = np.array(list(want.values()))
  # Of a text that was hardly found the spread is not known: weights are at most about 1.
  error = np.maximum(found.std(0), np.sqrt(mass / K)) / np.sqrt(runs)
  assert (abs(found.mean(0) - mass) < 4 * error).all()
  assert abs(found.sum(1).mean() - mass.sum()) < 4 * found.sum(1).std() / np.sqrt(runs)
  got = dict(zip(want, found.mean(0), strict=True))
  assert distance(got, want) < 0.1 < 0.4 < distance(masked, want)


CASES = {
  "all texts": (lambda ids: True, 0.0, 1 / 8, {1, 2, 3}),
  "no text": (lambda ids: np.False_, -np.inf, 0.0, {0}),
  "a dead end": (lambda ids: len(ids) < 2 and ids != (0,), -np.inf, 0.0, {1}),
}


@pytest.mark.parametrize(("rule", "log_weight", "share", "lengths"), CASES.values(), ids=CASES)
def test_weights_without_a_choice(rule, log_weight, share, lengths):
  (got,) = specjax.search.constrained(TINY, [PROMPT], rule, 8, NEW)
  np.testing.assert_allclose([x.log_weight for x in got], log_weight, atol=1e-5)
  np.testing.assert_allclose([x.share for x in got], share, atol=1e-5)
  assert {len(x.tokens) for x in got} <= lengths


def test_the_same_is_asked_once():
  asked = []
  specjax.search.constrained(TINY, [PROMPT], lambda ids: asked.append(ids) or allowed(ids), 8, NEW)
  assert len(asked) == len(set(asked))
  assert not any(0 in ids[:-1] for ids in asked)  # nothing follows a stop token


@pytest.mark.parametrize(
  ("weights", "uniform", "rows", "size"),
  [
    ((0.5, 0.25, 0.25, 0.0), 0.5, [0, 0, 1, 2], 1 / 0.375),
    ((0.0, 0.0, 0.0, 3.0), 0.99, [3, 3, 3, 3], 1.0),
    ((0.7, 0.0, 0.0, 0.7), 0.0, [0, 0, 3, 3], 2.0),
    ((1e-300, 1e-300, 1e-300, 1e-300), 0.3, [0, 1, 2, 3], 4.0),
  ],
)
def test_particles_go_on_by_their_shares(weights, uniform, rows, size):
  weights = np.array(weights)
  log_weights = np.log(weights, out=np.full(4, -np.inf), where=weights > 0)
  assert resampled(log_weights, uniform).tolist() == rows
  assert effective(log_weights) == pytest.approx(size)


@pytest.mark.parametrize(
  "wrong",
  [{"particles": 0}, {"temperature": 0}, {"resample": 1.5}, {"seed": -1}, {"max_new_tokens": 0},
   {"allowed": None}],
)  # fmt: skip
def test_bad_arguments_are_refused(wrong):
  with pytest.raises(
    ValueError, match="`{}` must be .*, got {}".format(*next(iter(wrong.items())))
  ):
    specjax.search.constrained(TINY, [PROMPT], **{"allowed": allowed} | wrong)
  with pytest.raises(ValueError, match=r"`allowed\(..\)` must be true or false, got None"):
    specjax.search.constrained(TINY, [PROMPT], lambda ids: None)
