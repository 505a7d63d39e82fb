"""What every policy inherits from the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.diffusion import blocks, caches, denoise, stopping
from specjax.diffusion.base import Canvas
from specjax.diffusion.credit import Credit, credit
from specjax.diffusion.guidance import Guided, guided
from specjax.diffusion.policies import (
  POLICIES,
  Distance,
  Exploration,
  Filter,
  Flight,
  Leap,
  Levels,
  Ranked,
  Stable,
  Threshold,
)
from specjax.diffusion.policies.schedule import Times
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.transformer import Transformer
from specjax.sampling import request_keys

V, MASK, W, L = 24, 23, 6, 40
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_width=24, causal=False
)
PARAMS = {
  "random": np.int32(2), "confidence": Ranked(np.int32(1), np.float32(0)),
  "margin": Ranked(np.int32(2), np.float32(0)), "entropy": Ranked(np.int32(1), np.float32(0.3)),
  "left_to_right": np.int32(1), "threshold": np.float32(0.3), "factor": np.float32(1.6),
  "frechet": np.float32(-0.4), "entropy_threshold": np.float32(2.0),
  "entropy_bound": np.float32(2.0), "entropy_distance": Distance(np.float32(2.0), np.float32(0.1)),
  "local_leap": Leap(np.float32(0.4), np.float32(0.2), np.int32(2)),
  "hierarchy": Levels(np.float32(0.6), np.float32(0.1)), "warm_up": np.int32(2),
  "in_flight": Flight(np.int32(2), np.float32(0.4), np.float32(0.5), np.float32(1.0)),
  "explore": Exploration(np.float32(0.4), np.float32(0.5), np.int32(2)),
  "klass": Stable(np.float32(0.2), np.float32(0.1), np.int32(1)),
  "origin": Times(np.int32(4), np.float32(1e-3)),
  "learned": Filter(np.eye(W, dtype=np.float32), np.zeros(W, np.float32),
                    np.eye(W, dtype=np.float32), np.zeros(W, np.float32), np.float32(0.57)),
}  # fmt: skip


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


WEIGHTS = random_params(0)


def canvases() -> Canvas:
  """Prompts of several lengths, holes in the middle, a row that is full, one without a prompt."""
  rng = np.random.default_rng(1)
  tokens = rng.integers(0, V - 1, (5, L)).astype(np.int32)
  masked = np.zeros((5, L), bool)
  end = np.array([30, 21, 34, 12, 9], np.int32)
  masked[0, 12:30] = True
  masked[1, 5:8] = masked[1, 14:16] = masked[1, 20] = True
  masked[2, 3:34:2] = True
  masked[4, :8] = True
  return Canvas(jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(end))


def test_every_policy_that_only_commits_is_tested():
  """The others are in test_changes."""
  assert {name for name in POLICIES if POLICIES[name]().rounds is None} == set(PARAMS)


@functools.cache
def method_of(name: str, shift: bool = False, transforms=()) -> denoise.DenoiseMethod:
  network = denoiser(CONFIG, MASK, shift)
  return denoise.DenoiseMethod(
    network, caches.none(network, W), POLICIES[name](), blocks.fixed(W), stopping.whole(),
    transforms,
  )  # fmt: skip


def decode(name: str, canvas: Canvas, rows, shift=False, temperature=0.7):
  method = method_of(name, shift)
  B = len(canvas.end)
  parameters = PARAMS[name] if isinstance(PARAMS[name], tuple) else (PARAMS[name],)
  params = method.policy.parameters(*(jnp.full(B, x) if np.ndim(x) == 0 else x for x in parameters))
  weights = denoise.Weights(WEIGHTS, params)
  request = denoise.DenoiseRequest(request_keys(0, rows), jnp.full(B, temperature))
  state = denoise.compiled_start(method, weights, canvas)
  state = denoise.compiled_advance(method, weights, request, state, jnp.int32(1000))
  return jax.device_get(state)


def test_a_policys_mistake_is_one_sentence():
  method = method_of("threshold")
  select = method.policy.select

  def wrong(*args):
    commit, score, memory = select(*args)
    return commit[:, 1:], score, memory

  method = method._replace(policy=method.policy._replace(name="mine", select=wrong))
  canvas = canvases()
  weights = denoise.Weights(WEIGHTS, method.policy.parameters(jnp.full(5, 0.3)))
  request = denoise.DenoiseRequest(request_keys(0, range(5)), jnp.zeros(5))
  state = denoise.compiled_start.eval_shape(method, weights, canvas)
  sentence = (
    r"`commit` of the policy 'mine' must be bool\[B, W\] with B = 5, W = 6, got bool\[5, 5\]"
  )
  with pytest.raises(ValueError, match=sentence):
    denoise.compiled_advance.eval_shape(method, weights, request, state, jnp.int32(1))


@pytest.mark.parametrize("name", PARAMS)
def test_invariants(name):
  canvas = canvases()
  state = decode(name, canvas, np.arange(5))
  given = ~np.asarray(canvas.masked)
  inside = np.arange(L) < np.asarray(canvas.end)[:, None]
  holes = np.asarray(canvas.masked) & inside
  assert state.done.all() and not (state.canvas.masked & inside).any()
  np.testing.assert_array_equal(state.canvas.tokens[given], np.asarray(canvas.tokens)[given])
  assert (state.canvas.tokens[holes] != MASK).all()
  np.testing.assert_array_equal(state.when >= 0, holes)
  assert (state.passes <= holes.sum(1)).all() and state.passes[3] == 0
  for b in range(5):  # one slot per round at least, and nothing is committed twice
    rounds = state.when[b][holes[b]]
    assert set(rounds) == set(range(state.passes[b]))
  assert (state.log_prob[holes] < 0).all() and (state.log_prob[~holes] == 0).all()


@pytest.mark.slow
@pytest.mark.full(but=["True-random", "False-hierarchy"])
@pytest.mark.parametrize("name", ["random", "threshold", "hierarchy"])
@pytest.mark.parametrize("shift", [False, True])
def test_rows_are_independent(name, shift):
  canvas = canvases()
  together = decode(name, canvas, np.arange(5), shift)
  for b in range(5):
    alone = decode(name, jax.tree.map(lambda x, b=b: x[b : b + 1], canvas), [b], shift)
    np.testing.assert_array_equal(alone.canvas.tokens[0], together.canvas.tokens[b])
    np.testing.assert_array_equal(alone.when[0], together.when[b])


def test_blocks_are_filled_from_left_to_right():
  state = decode("random", canvases(), np.arange(5))
  when = state.when[0, 12:30].reshape(3, W)
  assert when[0].max() < when[1].min() and when[1].max() < when[2].min()


def test_what_lies_past_the_end_is_not_seen():
  canvas = canvases()
  other = canvas.tokens.at[:, 35:].set(3)
  a = decode("confidence", canvas, np.arange(5))
  b = decode("confidence", canvas._replace(tokens=other), np.arange(5))
  np.testing.assert_array_equal(a.canvas.tokens[:, :34], b.canvas.tokens[:, :34])


@pytest.mark.slow
def test_a_sweep_compiles_once():
  method = method_of("threshold")
  bars = np.linspace(0.05, 1.0, 20, dtype=np.float32)
  one = jax.tree.map(lambda x: x[:1], canvases())
  canvas = jax.tree.map(lambda x: jnp.repeat(x, 20, 0), one)
  request = denoise.DenoiseRequest(request_keys(0, np.zeros(20, int)), jnp.zeros(20))
  weights = denoise.Weights(WEIGHTS, Threshold(jnp.asarray(bars)))
  before = denoise.compiled_advance._cache_size()
  for shuffle in (np.arange(20), np.arange(20)[::-1]):
    swept = weights._replace(policy=Threshold(jnp.asarray(bars[shuffle])))
    state = denoise.compiled_start(method, swept, canvas)
    state = denoise.compiled_advance(method, swept, request, state, jnp.int32(1000))
  assert denoise.compiled_advance._cache_size() == before + 1
  passes = np.asarray(state.passes)[::-1]
  assert passes[-1] == 18 and passes[0] < 18
  for i in (0, 7, 19):  # a row of the sweep is the row alone
    alone = weights._replace(policy=Threshold(jnp.asarray(bars[i : i + 1])))
    first = denoise.DenoiseRequest(request_keys(0, [0]), jnp.zeros(1))
    got = denoise.compiled_start(method, alone, one)
    got = denoise.compiled_advance(method, alone, first, got, jnp.int32(1000))
    assert int(got.passes[0]) == passes[i]


def run(network, params, canvas: Canvas, transforms=(), settings=(), policy="threshold"):
  B = len(canvas.end)
  method = denoise.DenoiseMethod(
    network, caches.none(network, W), POLICIES[policy](), blocks.fixed(W), stopping.whole(),
    transforms,
  )  # fmt: skip
  weights = denoise.Weights(params, method.policy.parameters(jnp.full(B, 0.3)), transforms=settings)
  request = denoise.DenoiseRequest(request_keys(0, np.arange(B)), jnp.zeros(B))
  state = denoise.compiled_start(method, weights, canvas)
  return denoise.compiled_advance(method, weights, request, state, jnp.int32(1000))


@pytest.mark.slow
def test_credit_without_strength_changes_nothing_and_with_it_saves_rounds():
  network, canvas = denoiser(CONFIG, MASK), canvases()
  B = len(canvas.end)
  base = run(network, WEIGHTS, canvas)

  def with_strength(alpha):
    setting = Credit(jnp.full(B, alpha), jnp.full(B, 0.8), jnp.full(B, 0.2))
    return run(network, WEIGHTS, canvas, (credit(),), (setting,))

  none, strong = with_strength(0.0), with_strength(3.0)
  np.testing.assert_array_equal(none.canvas.tokens, base.canvas.tokens)
  np.testing.assert_array_equal(none.when, base.when)
  assert int(strong.passes.sum()) < int(base.passes.sum())


def test_credit_by_hand():
  rng = np.random.default_rng(0)
  transform, B = credit(), 2
  params = Credit(jnp.full(B, 0.7), jnp.full(B, 0.8), jnp.full(B, 0.2))
  memory, earned = transform.init(B, W, V), np.zeros((B, W, V))
  masked = rng.random((B, W)) < 0.6
  for step in range(3):
    logits = rng.normal(size=(B, W, V)).astype(np.float32)
    got, memory = transform.apply(
      params, memory, jnp.asarray(logits), jnp.asarray(masked), jnp.full(B, step)
    )
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    earned *= 0.8
    for b, w in zip(*np.nonzero(masked), strict=True):
      best = logits[b, w].argmax()
      earned[b, w, best] += probs[b, w, best] ** 0.2
    np.testing.assert_allclose(got, logits + 0.7 * np.log1p(earned), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_guidance():
  network, canvas = denoiser(CONFIG, MASK), canvases()
  prompt, B = ~canvas.masked, len(canvas.end)
  base = run(network, WEIGHTS, canvas)
  plain = run(guided(network), Guided(WEIGHTS, prompt, jnp.zeros(B)), canvas)
  np.testing.assert_array_equal(plain.canvas.tokens, base.canvas.tokens)
  prediction = jnp.arange(L)[None] < canvas.end[:, None]
  wrapped = guided(network)
  params = Guided(WEIGHTS, prompt, jnp.full(B, 1.5))
  position = jnp.broadcast_to(jnp.arange(L), (B, L))

  @functools.partial(jax.jit, static_argnums=0)
  def logits(network, params, tokens):
    return network.head(params, network.evaluate(params, tokens, position, prediction)[0])

  got = logits(wrapped, params, canvas.tokens)
  hidden = jnp.where(prompt, MASK, canvas.tokens)
  both = [logits(network, WEIGHTS, x) for x in (canvas.tokens, hidden)]
  np.testing.assert_allclose(got, both[1] + 2.5 * (both[0] - both[1]), rtol=1e-4, atol=1e-4)
