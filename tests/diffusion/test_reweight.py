"""Reweighted guesses near the joint distribution, by enumeration and in the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Denoiser
from specjax.diffusion.policies import POLICIES, Quota
from specjax.diffusion.reweight import Reweighted, autoregressive, resample, reweighted
from specjax.sampling import request_keys
from specjax.testing import random_table, table_model
from specjax.testing.enumerate import Script, _combinations, next_distribution, probability

PAIR = np.array([[0.45, 0.05], [0.05, 0.45]])  # two slots that agree; each alone is a fair coin
SUSPICIOUS = 1e-6


@functools.partial(jax.jit, static_argnames=("samples", "sign"))
def play(log_q, log_p, tokens, masked, rows, samples, sign):
  """All that can happen: row r of the batch is told the outcomes that are the digits of r."""
  script, B = Script(rows), rows.shape[0]

  def energy(guess):
    said = log_p[guess.tokens[:, 0], guess.tokens[:, 1]]
    return sign * (guess.log_q - said)  # -1 weighs by exp(+E)

  seen = jnp.ones(2, bool)
  wide = (jnp.broadcast_to(x, (B, *x.shape)) for x in (log_q, tokens, masked, seen))
  return resample(script, *wide, energy, samples), script.record


def log_probs_of(q, p, samples, tokens=(0, 0), masked=(True, True), sign=1) -> np.ndarray:
  """f64[2, 2]: of the two slots, q f[2, 2] being the distribution of each."""

  def arguments(B: int):
    logs = (jnp.log(jnp.asarray(x, jnp.float32)) for x in (q, p))
    return *logs, jnp.asarray(tokens), jnp.asarray(masked), jnp.arange(B), samples, sign

  _, shapes = play.eval_shape(*arguments(1))
  texts, record = jax.device_get(play(*arguments(_combinations(shapes))))
  weight = np.prod([probability(entry) for entry in record], axis=0)
  return np.bincount(texts @ [2, 1], weight, minlength=4).reshape(2, 2)


def distance(a, b) -> float:
  return float(0.5 * np.abs(a - b).sum())


def test_the_distribution_nears_the_joint_as_samples_grow():
  fair = np.full((2, 2), 0.5)
  off = {S: distance(log_probs_of(fair, PAIR, S), PAIR) for S in (1, 2, 4, 6)}
  np.testing.assert_allclose(off[1], distance(np.full((2, 2), 0.25), PAIR), atol=1e-6)
  assert off[1] > 0.39  # one sample is the independent draw
  # The distance falls as 1 / S at least.
  assert all(off[S] < off[1] / S + 0.03 for S in (2, 4, 6)) and off[6] < off[4] < off[2]
  assert distance(log_probs_of(fair, PAIR, 2, sign=-1), PAIR) > off[1] + 0.1


def test_what_is_known_counts():
  q = np.array([[0.5, 0.5], [0.3, 0.7]])
  for known in (0, 1):
    got = log_probs_of(q, PAIR, 6, tokens=(known, 0), masked=(False, True))
    want = PAIR[known] / PAIR[known].sum()
    assert got[1 - known].sum() == 0
    assert distance(got[known], want) < 0.3 * distance(q[1], want)


V, MASK, W, L = 2, 2, 2, 5  # slot 0 is given, slots 1 and 2 are filled, the others are past the end
TABLE = random_table(0, V)
GUESS = np.random.default_rng(0).normal(size=(L, V + 1)).astype(np.float32)


def evaluate(params, tokens, position, seen, earlier=None):
  return params[position], ()


TOY = Denoiser(V + 1, MASK, False, evaluate, lambda params, states: states)
CAUSAL = autoregressive(table_model(V))
SURE = reweighted(TOY, CAUSAL)


def decode(rows, quota: int):
  """Both slots in one pass, or one after the other."""
  B = len(rows)
  method = denoise.DenoiseMethod(
    SURE, caches.none(SURE, W), POLICIES["left_to_right"](), blocks.fixed(W), stopping.whole()
  )
  canvas = Canvas(
    jnp.tile(jnp.array([[1, 0, 0, 1, 0]]), (B, 1)),
    jnp.tile(jnp.array([[False, True, True, True, False]]), (B, 1)), jnp.full(B, 3),
  )  # fmt: skip
  params = Reweighted(jnp.asarray(GUESS), TABLE, request_keys(7, rows))
  weights = denoise.Weights(params, Quota(jnp.full(B, quota)))
  request = denoise.DenoiseRequest(request_keys(0, rows), jnp.zeros(B))
  state = denoise.compiled_start(method, weights, canvas)
  return jax.device_get(denoise.compiled_advance(method, weights, request, state, jnp.int32(9)))


def expected(quota: int, samples: int = 2) -> np.ndarray:
  """f64[2, 2], p written out from the table."""
  table = np.asarray(TABLE["logits"], np.float64)
  first = next_distribution(table[V, 1], 1.0)
  p = first[:, None] * np.stack([next_distribution(table[1, a], 1.0) for a in range(V)])
  q = np.stack([next_distribution(row[:V], 1.0) for row in GUESS[1:3]])
  together = log_probs_of(q, p, samples)
  if quota == 2:
    return together
  given = [log_probs_of(q, p, samples, (a, 0), (False, True))[a] for a in range(V)]
  return together.sum(1, keepdims=True) * np.stack(given)


@pytest.mark.slow
@pytest.mark.parametrize("quota", [1, 2])
def test_the_denoising_loop_draws_from_that_distribution(quota):
  B = 2**12
  state = decode(np.arange(B), quota)
  assert state.done.all() and (state.passes == 2 // quota).all()
  np.testing.assert_array_equal(state.canvas.tokens[:, 0], 1)
  observed = np.bincount(state.canvas.tokens[:, 1:3] @ [2, 1], minlength=4)

  def p_value(probs: np.ndarray) -> float:
    return float(stats.chisquare(observed, B * probs.ravel(), sum_check=False).pvalue)

  assert p_value(expected(quota)) > SUSPICIOUS > p_value(expected(quota, samples=1))
  alone = decode([5], quota)
  np.testing.assert_array_equal(alone.canvas.tokens[0], state.canvas.tokens[5])


def test_shifted_denoisers_and_parts_of_a_canvas():
  tokens = jnp.tile(jnp.array([[1, MASK, MASK, MASK, MASK]]), (20, 1))
  position = jnp.broadcast_to(jnp.arange(L), tokens.shape)
  seen = jnp.ones(tokens.shape, bool)
  shifted = reweighted(TOY._replace(shift=True), CAUSAL)
  assert not shifted.shift

  def chosen(network, guess):
    params = Reweighted(jnp.asarray(guess), TABLE, request_keys(7, np.arange(20)))
    return jax.jit(network.evaluate)(params, tokens, position, seen)[0]

  base = chosen(SURE, GUESS)
  np.testing.assert_array_equal(chosen(shifted, np.roll(GUESS, -1, 0)), base)
  assert (base != MASK).all() and len(np.unique(base, axis=0)) > 3
  with pytest.raises(
    ValueError,
    match=(r"`cache` must be none for a reweighted denoiser, which weighs whole texts\."),
  ):
    SURE.evaluate((), tokens, position, seen, ())
