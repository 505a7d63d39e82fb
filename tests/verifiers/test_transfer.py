"""The rule of RAPID emits the distribution that its formula gives, and at eta = 0 the target's."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding.method import method
from specjax.drafters import draft_model
from specjax.testing.enumerate import (
  Case,
  emitted_distribution,
  target_distribution,
  total_variation,
)
from specjax.testing.table import random_table, table_model
from specjax.verifiers import transfer
from specjax.verifiers.transfer import transferred

V = 3
P, Q = (np.asarray(random_table(seed, V)["logits"]) for seed in (0, 101))


def emitted(p: np.ndarray, q: np.ndarray, eta: float, alpha: float) -> np.ndarray:
  """The distribution of the first token, written out."""
  moved = p * np.exp(-eta * np.where(q >= alpha * q.max(), p - q, 0.0))
  both = np.minimum(q, moved / moved.sum())
  left = np.maximum(p - both, 0)
  return both + (1 - both.sum()) * left / left.sum()


def test_the_example_of_the_formula():
  p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
  np.testing.assert_allclose(emitted(p, q, 1.0, 0.0), [0.412, 0.271, 0.317], atol=5e-4)
  log_p, log_q = (jnp.log(jnp.asarray(x, jnp.float32)) for x in (p, q))
  moved = np.exp(transferred(log_p, log_q, 1.0, 0.5))  # only the last token is likely enough
  np.testing.assert_allclose(moved, p * np.exp([0, 0, 0.4]) / (0.8 + 0.2 * np.exp(0.4)), rtol=1e-5)


@pytest.mark.parametrize(("eta", "alpha"), [(1.0, 0.1), (10.0, 0.6)])
def test_the_first_token_follows_the_formula(eta, alpha):
  rule = method(table_model(V), draft_model(table_model(V), 2), transfer(eta, alpha))
  case = Case(P, prompt=(0, 2, 0), length=1, temperature=1.3)
  p, q = (
    np.array([d.get((v,), 0.0) for v in range(V)])
    for d in map(target_distribution, (case, dataclasses.replace(case, logits=Q)))
  )
  got = emitted_distribution(case, rule, random_table(101, V))
  want = emitted(p, q, eta, alpha)
  np.testing.assert_allclose([got[(v,)] for v in range(V)], want, atol=1e-5)
  assert np.abs(want - p).sum() > 0.02


@pytest.mark.slow
def test_without_a_shift_it_is_exact_and_says_so():
  assert transfer(0.0).exactness == "EXACT" and transfer(0.1).exactness.startswith("LOSSY")
  rule = method(table_model(V), draft_model(table_model(V), 3), transfer(0.0))
  case = Case(P, prompt=(0, 2, 0), temperature=0.7)
  got = emitted_distribution(case, rule, random_table(101, V))
  assert total_variation(got, target_distribution(case)) < 1e-5


def test_impossible_numbers_are_an_error():
  for bad in ({"eta": -1.0}, {"alpha": 1.5}):
    with pytest.raises(
      ValueError,
      match=(
        r"`eta` must be at least 0 and `alpha` between 0 and 1, got (-1 and 0\.1|10 and 1\.5)\."
      ),
    ):
      transfer(**bad)
