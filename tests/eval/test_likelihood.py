"""Likelihoods against sums over plain passes, and over all places of masks."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

import specjax
from specjax.eval import divergence, likelihood


@pytest.fixture(scope="module")
def causal():
  return cut()


@pytest.fixture(scope="module")
def denoiser():
  return specjax.load("lists-3m")


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return x - x.max() - np.log(np.exp(x - x.max()).sum())


def after(model, context, said):
  """(log-probability, whether greedy), one plain forward for each token."""
  total, greedy = 0.0, True
  for i, token in enumerate(said):
    logits = divergence.logits(model, [*context, *said[:i]])
    total += log_softmax(logits)[token]
    greedy &= int(logits.argmax()) == token
  return total, greedy


def test_a_continuation_has_the_sum_of_plain_forwards(causal):
  context = causal.encode("Ann has 3 pens and buys")
  (plain,) = specjax.Decoder(causal)([context], 5)
  pairs = [(context, plain.tokens), (context[:4], causal.encode(" 7 more pens.")), (context, [5])]
  found = likelihood.causal(causal, pairs, batch=2)
  for (context, said), score in zip(pairs, found, strict=True):
    log_prob, greedy = after(causal, context, said)
    np.testing.assert_allclose(score.log_prob, log_prob, atol=1e-4)
    assert score.greedy == greedy
  assert found[0].greedy and not found[2].greedy


def test_a_context_that_is_too_long_is_cut_on_the_left(causal):
  short = dataclasses.replace(causal, config=dataclasses.replace(causal.config, max_length=40))
  ids = list(range(5, 105))
  (cut,) = likelihood.causal(short, [(ids, [9, 10])])
  (same,) = likelihood.causal(causal, [(ids[-38:], [9, 10])])
  np.testing.assert_allclose(cut.log_prob, same.log_prob, rtol=1e-6)


@functools.cache
def logits_of(network):
  def run(params, tokens):
    position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    seen = jnp.ones_like(position, bool)
    states, _ = network.evaluate(params, tokens, position, seen, None)
    return network.head(params, states)

  return jax.jit(run)


def expected(model, context, said):
  """LLaDA's bound, summed over every number and every place of masks."""
  n, total = len(said), 0.0
  for count in range(1, n + 1):
    places = list(itertools.combinations(range(n), count))
    for hidden in places:
      noisy = [*context, *(model.mask if j in hidden else t for j, t in enumerate(said))]
      tokens = jnp.asarray([noisy], jnp.int32)
      logits = np.array(logits_of(model.denoiser)(model.params, tokens)[0], np.float64)
      logits[:, model.mask] = -math.inf
      kept = sum(log_softmax(logits[len(context) + j])[said[j]] for j in hidden)
      total += n / count * kept / len(places) / n
  return total


@pytest.mark.slow
def test_a_denoisers_estimate_has_the_bound_as_its_mean(denoiser):
  context, said = denoiser.encode("sort : Leo Ada Kim ="), denoiser.encode("Ada Leo Kim")
  with jax.default_matmul_precision("float32"):
    want = expected(denoiser, context, said)
    estimates = likelihood.masked(denoiser, [(context, said)] * 40, samples=24, batch=32)
  error = np.std(estimates) / math.sqrt(len(estimates))
  assert abs(np.mean(estimates) - want) < 4 * error + 1e-4, (np.mean(estimates), want, error)


@pytest.mark.slow
def test_a_model_of_blocks_has_the_sum_of_its_blocks_bounds(denoiser):
  config = dataclasses.replace(denoiser.config, block_length=4)
  model = dataclasses.replace(denoiser, config=config)
  context, said = denoiser.encode("sort : Leo Ada Kim ="), denoiser.encode("Ada Leo Kim .")
  assert len(context) == 6 and len(said) == 4  # two tokens in the block of the question, two behind
  with jax.default_matmul_precision("float32"):
    want = expected(model, context, said[:2]) + expected(model, context + said[:2], said[2:])
    estimates = likelihood.masked(model, [(context, said)] * 40, samples=24, batch=32)
  error = np.std(estimates) / math.sqrt(len(estimates))
  assert abs(np.mean(estimates) - want) < 4 * error + 1e-4, (np.mean(estimates), want, error)
  assert abs(want - expected(denoiser, context, said)) > 0.1


def test_one_token_is_known_after_one_pass(denoiser):
  context, said = denoiser.encode("sort : Leo Ada Kim ="), denoiser.encode("Ada")
  found = likelihood.masked(denoiser, [(context, said)] * 2, samples=8)
  np.testing.assert_allclose(found, expected(denoiser, context, said), atol=1e-4)


@pytest.mark.parametrize(
  ("pairs", "message"),
  [([([], [1])], "context"), ([([1], [])],
   r"pairs\[0\]: length of the continuation must be between 1 and 383, got 0\."),
   ([([1], [1] * 9999)],
    r"pairs\[0\]: length of the continuation must be between 1 and 383, got 9999\.")],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused(causal, pairs, message):
  with pytest.raises(ValueError, match=message):
    likelihood.causal(causal, pairs)


def test_the_kinds_are_told_apart(causal, denoiser):
  with pytest.raises(ValueError, match="lists-3m"):
    likelihood.causal(denoiser, [([1], [1])])
  with pytest.raises(ValueError, match="gsm8k-7m"):
    likelihood.masked(causal, [([1], [1])])
