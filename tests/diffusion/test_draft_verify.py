"""Draft and verify: token for token what its base decodes, in no more passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, draft_verify, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.draws import anew, kept
from specjax.diffusion.policies import POLICIES, Ranked, Stable
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer
from specjax.sampling import request_keys

V, MASK, W, L, B = 16, 15, 6, 32, 30
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=2, head_dim=8, mlp_width=24, causal=False
)
NEAR = functools.partial(caches.vicinity, before=3, after=2, warm_up=0)
CASES = {  # policy, its params, plan, schedule, shift, temperature
  "one by one": ("confidence", 1, caches.none, "fixed", False, 0.0),
  "one by one, dual": ("confidence", 1, caches.dual, "fixed", True, 0.0),
  "one by one, drawn": ("confidence", 1, caches.prefix, "fixed", False, 0.8),
  "threshold": ("threshold", 0.4, caches.none, "fixed", False, 0.0),
  "threshold, vicinity": ("threshold", 0.4, NEAR, "fixed", True, 0.8),
  "threshold, adaptive blocks": ("threshold", 0.4, caches.free, "adaptive", False, 0.0),
  "random": ("random", 2, caches.none, "fixed", False, 0.8),
  "klass": ("klass", Stable(0.3, 0.5, 1), caches.none, "fixed", False, 0.0),
  "klass, a block ahead": ("klass", Stable(0.3, 0.5, 1), caches.none, "ahead", False, 0.0),
  "one by one, the rest filled": ("confidence", 1, caches.none, "fixed", False, 0.0),
  "one by one, drawn anew": ("confidence", Ranked(1, 0.3), caches.none, "fixed", False, 0.6),
}
STOPPING = {"one by one, the rest filled": stopping.sure_end(0.3)}  # others: after_end


def random_params(seed: int):
  z = jnp.zeros((1, 2), jnp.int32)
  module = Transformer(CONFIG)
  shapes = jax.eval_shape(module.init, jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 if x.ndim > 1 else np.ones(x.shape),
                          jnp.float32),
    shapes,
  )  # fmt: skip


def canvases(seed: int) -> Canvas:
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, V - 1, (B, L)).astype(np.int32)
  end = rng.integers(8, L - W, B).astype(np.int32)
  masked = (np.arange(L) >= rng.integers(0, 6, B)[:, None]) & (rng.random((B, L)) < 0.9)
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(end))


@functools.cache
def method_of(case: str) -> denoise.DenoiseMethod:
  name, _, cache, kind, shift, _ = CASES[case]
  network = denoiser(CONFIG, MASK, shift)
  sizes = {"fixed": blocks.fixed(W), "ahead": blocks.fixed(W // 2, W // 2),
           "adaptive": blocks.adaptive(W)}[kind]  # fmt: skip
  stop = STOPPING.get(case, stopping.after_end())
  drawn_anew = case.endswith("anew")
  return denoise.DenoiseMethod(
    network, cache(network, W), POLICIES[name](), sizes, stop,
    draws=anew() if drawn_anew else kept(), tempered=drawn_anew,
  )  # fmt: skip


def decode(case: str, seed: int, guesses: int | None):
  name, setting, _, kind, _, temperature = CASES[case]
  parameters = setting if isinstance(setting, tuple) else POLICIES[name]().parameters(setting)
  params = jax.tree.map(
    lambda x: jnp.full(B, x, jnp.int32 if isinstance(x, int) else jnp.float32), parameters
  )
  sizes = ()
  if kind == "adaptive":
    sizes = blocks.Delimiters(
      jnp.array([3, 5], jnp.int32), jnp.full(B, 0.2), jnp.full(B, 4, jnp.int32),
      jnp.full(B, W, jnp.int32),
    )  # fmt: skip
  method = method_of(case)
  weights = denoise.Weights(random_params(seed), params, sizes, jnp.array([7], jnp.int32))
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.full(B, temperature))
  loop = denoise if guesses is None else draft_verify
  options = {} if guesses is None else {"guesses": guesses}
  state = loop.compiled_start(method, weights, canvases(seed))
  state = loop.compiled_advance(method, weights, request, state, jnp.int32(1000), **options)
  return jax.device_get(state)


def assert_same(got, base):
  assert got.state.done.all()
  np.testing.assert_array_equal(got.state.canvas.tokens, base.canvas.tokens)
  np.testing.assert_array_equal(got.state.canvas.end, base.canvas.end)
  np.testing.assert_array_equal(got.state.when, base.when)
  np.testing.assert_array_equal(got.state.passes, base.passes)
  assert (got.passes <= base.passes).all()


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_the_canvas_is_the_bases(case):
  base, got = decode(case, 0, None), decode(case, 0, 4)
  assert_same(got, base)
  assert got.passes.sum() < base.passes.sum()


@pytest.mark.slow
def test_three_hundred_toys():
  passes = rounds = 0
  for seed in range(10):
    base, got = decode("one by one", seed, None), decode("one by one", seed, 4)
    assert_same(got, base)
    passes, rounds = passes + got.passes.sum(), rounds + base.passes.sum()
  assert rounds / passes > 1.3


@pytest.mark.full
def test_one_guess_is_plain_decoding():
  base, got = decode("threshold", 1, None), decode("threshold", 1, 1)
  assert_same(got, base)
  np.testing.assert_array_equal(got.passes, base.passes)


@pytest.mark.parametrize("cache", [caches.vicinity, caches.sliding])
def test_plans_that_count_passes_are_refused(cache):
  network = denoiser(CONFIG, MASK)
  method = denoise.DenoiseMethod(
    network, cache(network, W), POLICIES["confidence"](), blocks.fixed(W), stopping.whole()
  )
  with pytest.raises(
    ValueError, match=r"`cache` must be none, dual.*, got '(sliding|vicinity|similar|free|reuse)"
  ):
    draft_verify.start(method, denoise.Weights(random_params(0)), canvases(0))
