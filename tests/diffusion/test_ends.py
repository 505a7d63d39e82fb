"""Texts that would end too soon: end markers come last, or never."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas, Denoiser
from specjax.diffusion.policies import POLICIES, EndLast
from specjax.diffusion.policies.end_last import end_last
from specjax.diffusion.suppression import Suppressed, end_suppressed
from specjax.sampling import request_keys

B, W, V = 4, 6, 5
ENDS = np.array([[0, 3]] * B, np.int32)
LIKELIEST = np.array([0, 2, 3, 1, 0, 4])
LOGITS = np.random.default_rng(0).normal(size=(W, V)).astype(np.float32)
LOGITS[np.arange(W), LIKELIEST] += [9, 3, 8, 2, 7, 4]  # ends are the surest


def read(params, tokens, position, seen, earlier=None):
  return params[position], ()


FIXED = Denoiser(V + 1, V, False, read, lambda params, states: states)


def decode(policy, params, transforms=(), own=()):
  method = denoise.DenoiseMethod(
    FIXED, caches.none(FIXED, W), policy, blocks.fixed(W), stopping.whole(), transforms
  )
  canvas = Canvas(
    jnp.zeros((B, 2 * W), jnp.int32), jnp.tile(jnp.arange(2 * W) < W, (B, 1)), jnp.full(B, W)
  )
  logits = jnp.pad(jnp.asarray(LOGITS), ((0, W), (0, 1)))
  weights = denoise.Weights(logits, params, transforms=own)
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.zeros(B))
  state = denoise.compiled_start(method, weights, canvas)
  return jax.device_get(denoise.compiled_advance(method, weights, request, state, jnp.int32(99)))


@pytest.mark.parametrize(
  ("name", "parameter"), [("threshold", np.float32(2.0)), ("random", np.int32(1))]
)
def test_ends_wait_for_all_other_slots(name, parameter):
  """Also where the policy names no slot, and the loop takes the best."""
  base = POLICIES[name]()
  params = EndLast(base.parameters(jnp.full(B, parameter)), jnp.asarray(ENDS))
  state = decode(end_last(base), params)
  np.testing.assert_array_equal(state.canvas.tokens[:, :W], np.tile(LIKELIEST, (B, 1)))
  ends = np.isin(LIKELIEST, ENDS)
  assert (state.when[:, :W][:, ends].min(1) > state.when[:, :W][:, ~ends].max(1)).all()


def test_a_round_may_commit_all_ends_once_they_are_all_that_is_left():
  base = POLICIES["threshold"]()
  params = EndLast(base.parameters(jnp.full(B, 0.3)), jnp.asarray(ENDS))
  assert (decode(end_last(base), params).passes == 2).all()


def test_ends_that_are_suppressed_are_never_said():
  params = POLICIES["left_to_right"]().parameters(jnp.full(B, 2, jnp.int32))
  own = (Suppressed(jnp.asarray(ENDS)),)
  state = decode(POLICIES["left_to_right"](), params, (end_suppressed(),), own)
  left = LOGITS.astype(np.float64)
  left[:, ENDS[0]] = -np.inf
  want = left.argmax(1)
  np.testing.assert_array_equal(state.canvas.tokens[:, :W], np.tile(want, (B, 1)))
  nats = left.max(1) - np.log(np.exp(left).sum(1))
  np.testing.assert_allclose(state.log_prob[:, :W], np.tile(nats, (B, 1)), atol=1e-5)
