"""Accuracies of denoisers that know the task, against their closed forms."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.policies import POLICIES
from specjax.sampling import request_keys
from specjax.testing import ideal

N = 6


def decode(denoiser, policy: str, params, rows: int, temperature: float):
  """(answers i32[rows, N], passes i32[rows])."""
  method = denoise.DenoiseMethod(
    denoiser, caches.none(denoiser, N), POLICIES[policy](), blocks.fixed(N), stopping.whole()
  )
  canvas = Canvas(
    jnp.zeros((rows, 2 * N), jnp.int32), jnp.broadcast_to(jnp.arange(2 * N) < N, (rows, 2 * N)),
    jnp.full(rows, N, jnp.int32),
  )  # fmt: skip
  weights = denoise.Weights((), method.policy.parameters(jnp.full(rows, params)))
  request = denoise.DenoiseRequest(request_keys(0, np.arange(rows)), jnp.full(rows, temperature))
  state = denoise.compiled_start(method, weights, canvas)
  state = denoise.compiled_advance(method, weights, request, state, jnp.int32(100))
  assert bool(state.done.all())
  return np.asarray(state.canvas.tokens)[:, :N], np.asarray(state.passes)


def all_there(answers) -> float:
  return float((np.sort(answers, 1) == np.arange(N)).all(1).mean())


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_shuffling_fails_as_often_as_it_must(k):
  rows = 4096
  answers, passes = decode(ideal.shuffled(N), "random", k, rows, 1.0)
  want = math.prod(math.perm(m, k) / m**k for m in range(N, 0, -k))
  got = all_there(answers)
  assert abs(got - want) <= 4.5 * math.sqrt(want * (1 - want) / rows)
  assert (passes == N // k).all()


def test_a_threshold_above_half_shuffles_one_by_one():
  answers, passes = decode(ideal.shuffled(N), "threshold", 0.6, 64, 1.0)
  assert all_there(answers) == 1.0 and (passes == N).all()


@pytest.mark.parametrize("policy", ["threshold", "entropy_threshold", "factor", "frechet"])
def test_copying_takes_one_pass(policy):
  params = {"threshold": 0.99, "entropy_threshold": 0.01, "factor": 1.0, "frechet": 0.25}[policy]
  answers, passes = decode(ideal.copied(N), policy, params, 2, 0.0)
  np.testing.assert_array_equal(answers, np.tile(np.arange(N), (2, 1)))
  assert (passes == 1).all()


def test_replacing_one_flips_at_its_probability():
  for bar, right in (((N - 1) / N - 1e-3, 0.0), ((N - 1) / N + 1e-3, 1.0)):
    answers, _ = decode(ideal.replaced(N), "threshold", bar, 4, 0.0)
    changed = (answers == N).sum(1) == 1
    kept = ((answers == np.arange(N)) | (answers == N)).all(1)
    assert (changed & kept).mean() == right
