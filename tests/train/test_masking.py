"""Noise and loss of masked diffusion, against sums by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.train.recipe import asked_slots, masking


def test_every_number_of_masks_is_as_likely_and_the_prompt_never_masked():
  maskable = jnp.broadcast_to(jnp.arange(12)[None] >= 4, (800, 12))
  masked, p = masking.corrupt(jax.random.key(0), maskable)
  assert not masked[:, :4].any()
  k = np.asarray(masked.sum(1))
  np.testing.assert_array_equal(np.bincount(k), [0, *[100] * 8])
  np.testing.assert_allclose(p[:, 0], k / 8)
  for n in range(1, 9):  # every token is masked equally often
    assert np.abs(np.asarray(masked)[k == n][:, 4:].mean(0) - n / 8).max() < 0.2


def test_rows_without_anything_to_mask_keep_it():
  masked, p = masking.corrupt(jax.random.key(0), jnp.zeros((3, 5), bool))
  assert not masked.any() and (p == 1).all()


def test_the_loss_is_the_bound_on_two_tokens():
  """Its mean over t is the mean over orders of -log p(first) - log p(second given the first)."""
  rng = np.random.default_rng(0)
  log_probs = {  # (what is seen of token 0, of token 1) -> distributions of both
    seen: np.log(rng.dirichlet(np.ones(3), 2))
    for seen in itertools.product((0, 1, 2, None), repeat=2)
  }
  truth = (2, 0)

  def logits(masked) -> jnp.ndarray:
    return jnp.asarray(
      log_probs[tuple(None if m else t for m, t in zip(masked, truth, strict=True))]
    )

  tokens, maskable = jnp.array([truth]), jnp.ones((1, 2), bool)
  total, steps = 0.0, 20
  for t in (np.arange(steps) + 0.5) / steps:
    for masked in itertools.product((False, True), repeat=2):
      chance = np.prod([t if m else 1 - t for m in masked])
      said = asked_slots.cross_entropy(logits(masked)[None].astype(jnp.float32), tokens)
      loss, _ = masking.denoising_loss(
        *said, jnp.array([masked]), maskable, jnp.full((1, 1), 1 / t, jnp.float32)
      )
      total += chance * float(loss) / steps
  both, first, second = log_probs[None, None], log_probs[2, None], log_probs[None, 0]
  by_order = [-both[0, 2] - first[1, 0], -both[1, 0] - second[0, 2]]
  np.testing.assert_allclose(2 * total, np.mean(by_order), rtol=1e-5)


def test_context_weights_by_hand():
  got = masking.context_weight(jnp.array([[True, False, True, True, True]]), 0.3)[0]
  np.testing.assert_allclose(got[0], 0.15, rtol=1e-6)
  np.testing.assert_allclose(got[2], 0.15, rtol=1e-6)
  np.testing.assert_allclose(got[3], 0.15 * 0.7, rtol=1e-6)


@pytest.mark.slow
def test_only_masked_tokens_count():
  rng = np.random.default_rng(1)
  logits = jnp.asarray(rng.normal(size=(2, 4, 5)), jnp.float32)
  tokens = jnp.asarray(rng.integers(0, 5, (2, 4)))
  masked = jnp.array([[False, True, False, True], [False] * 4])
  maskable = jnp.array([[False, True, True, True]] * 2)
  weight = jnp.array([[2.0], [3.0]])
  said = asked_slots.cross_entropy(logits, tokens)
  loss, metrics = masking.denoising_loss(*said, masked, maskable, weight)
  nll = -jax.nn.log_softmax(logits)[0, jnp.array([1, 3]), tokens[0, jnp.array([1, 3])]]
  np.testing.assert_allclose(loss, 2 * float(nll.sum()) / 3 / 2, rtol=1e-6)
  right = logits.argmax(-1) == tokens
  assert float(metrics["accuracy"]) == float(right[0, jnp.array([1, 3])].mean())
