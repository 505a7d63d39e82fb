"""What several exits say, and the distribution of it, in full."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters.early_exit import by_peak, by_token
from specjax.sampling import Noise, request_keys
from specjax.testing.enumerate import Script, probability

V = 4
P = np.array([0.4, 0.1, 0.3, 0.2])


def exits(seed: int, count: int) -> np.ndarray:
  """Distributions f64[X, V]."""
  log_probs = np.exp(1.2 * np.random.default_rng(seed).normal(size=(count, V)))
  return log_probs / log_probs.sum(-1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _play(function, distributions, least, numbers):
  script = Script(numbers)
  rows = jnp.log(jnp.broadcast_to(distributions[:, None], (len(distributions), len(numbers), V)))
  return *function(rows, least, script, 1), script.record


def play(function, distributions, least):
  """(tokens, probabilities f64[R] of all that can be drawn, the distribution f64[V] returned)."""
  R = V ** (len(distributions) if function is by_token else 1)
  arguments = np.float32(distributions), np.float32(least), np.arange(R, dtype=np.int32)
  token, log_probs, record = jax.device_get(_play(function, *arguments))
  weight = np.prod([probability(entry) for entry in record], 0)
  np.testing.assert_allclose(weight.sum(), 1, rtol=1e-6)
  assert (log_probs == log_probs[:1]).all()
  return np.asarray(token), weight, np.exp(np.asarray(log_probs[0], np.float64))


def by_token_in_numpy(distributions, least) -> tuple[np.ndarray, np.ndarray]:
  """(distribution of the token f64[V], f64[X, V] of exit and token), summed over all draws."""
  joint = np.zeros_like(distributions)
  for draws in np.ndindex(*[V] * len(distributions)):
    weight = np.prod([q[x] for q, x in zip(distributions, draws, strict=True)])
    for i, x in enumerate(draws):
      if i + 1 == len(distributions) or distributions[i][x] >= least[i]:
        joint[i, x] += weight
        break
  return joint.sum(0), joint


def verified(joint, distribution_of_exit) -> np.ndarray:
  """f64[V] of the next token, when that of exit i is corrected for its own distribution."""
  emitted = np.zeros(V)
  for mass, q in zip(joint, distribution_of_exit, strict=True):
    accepted = np.minimum(1, np.divide(P, q, out=np.ones(V), where=q > 0))
    left = np.maximum(P - q, 0)
    emitted += mass * accepted + (mass * (1 - accepted)).sum() * left / max(left.sum(), 1e-300)
  return emitted


CASES = [(0, [0.3]), (2, [0.3]), (36, [0.3, 0.5]), (28, [0.3, 0.5]), (8, [0.2, 0.3, 0.4])]


@pytest.mark.parametrize(("seed", "least"), CASES)
def test_a_token_that_must_be_sure_has_the_distribution_of_the_mixture(seed, least):
  distributions = exits(seed, len(least) + 1)
  want, joint = by_token_in_numpy(distributions, least)
  token, weight, log_probs = play(by_token, distributions, least)
  np.testing.assert_allclose(np.bincount(token, weight, V), want, atol=1e-6)
  np.testing.assert_allclose(log_probs, want, atol=1e-6)
  assert (joint.sum(1) > 0.05).all()  # every exit speaks
  np.testing.assert_allclose(verified(joint, [log_probs] * len(distributions)), P, atol=1e-6)


@pytest.mark.parametrize(("seed", "least"), CASES)
def test_the_distribution_of_the_exit_that_spoke_is_the_wrong_one(seed, least):
  distributions = exits(seed, len(least) + 1)
  emitted = verified(by_token_in_numpy(distributions, least)[1], distributions)
  assert np.abs(emitted - P).sum() / 2 > 0.05


@pytest.mark.parametrize(
  ("least", "speakers"),
  [([0.6, 0.5], {0, 1, 2}), ([0.9, 0.5], {1, 2}), ([0.9, 0.9], {2}), ([0.0, 0.0], {0})],
)
def test_by_peak_the_first_exit_that_is_sure_speaks_alone(least, speakers):
  spoke = set()
  for seed in range(8):
    distributions = exits(seed, 3)
    i = next((i for i in range(2) if distributions[i].max() >= least[i]), 2)
    spoke.add(i)
    token, weight, log_probs = play(by_peak, distributions, least)
    np.testing.assert_allclose(log_probs, distributions[i], rtol=1e-5)
    np.testing.assert_allclose(np.bincount(token, weight, V), distributions[i], atol=1e-6)
    garbage = np.where(
      np.arange(3)[:, None] > i, 0.25, distributions
    )  # deeper exits are not looked at
    np.testing.assert_allclose(play(by_peak, garbage, least)[2], distributions[i], rtol=1e-5)
  assert spoke == speakers


@pytest.mark.full(but=["by_token"])
@pytest.mark.parametrize("function", [by_peak, by_token])
def test_rows_are_independent_and_tokens_follow_the_distribution(function):
  B, least = 4000, jnp.array([0.4, 0.5])
  distributions = np.stack([exits(s, 3) for s in (0, 3)], 1)  # [X, 2, V]
  rows = jnp.log(jnp.asarray(np.tile(distributions, (1, B // 2, 1)), jnp.float32))
  noise = Noise(request_keys(0, np.arange(B)), jnp.full(B, 9))
  token, log_probs = jax.jit(function)(rows, least, noise, 1)
  some = slice(10, 14)
  few = Noise(noise.key[some], noise.position[some])
  alone, probs_alone = function(rows[:, some], least, few, 1)
  np.testing.assert_array_equal(alone, token[some])
  np.testing.assert_allclose(probs_alone, log_probs[some], rtol=1e-6)
  for half in range(2):
    found = np.bincount(np.asarray(token)[half::2], minlength=V) / (B // 2)
    np.testing.assert_allclose(found, np.exp(log_probs[half]), atol=0.04)
