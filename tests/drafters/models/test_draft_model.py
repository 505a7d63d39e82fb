"""The draft model's own cache and distribution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.transformer import target
from specjax.sampling import DRAFT, Noise, Settings, request_keys, warp
from specjax.testing import random_table, table_model
from specjax.verifiers import target_only, token

V, T, DEPTH = 8, 6, 3
SMALL = Config(vocab_size=V, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=8)
TARGET = table_model(V)
LENGTH = np.array([6, 1, 3], np.int32)
B = len(LENGTH)


def transformer_params():
  rng = np.random.default_rng(0)
  init = functools.partial(transformer.init, SMALL)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, jnp.float32), shapes)


SMALL_PARAMS = transformer_params()
SEED = 1  # of which some drafts are accepted by either rule
WEIGHTS = speculate.Weights(random_table(0, V), SMALL_PARAMS)


def request_of(temperature: float = 0.8) -> speculate.DecodeRequest:
  settings = Settings(jnp.full(B, temperature), jnp.full(B, 5), jnp.full(B, 0.95), jnp.full(B, 0.0))
  keys = request_keys(SEED, np.arange(B))
  return speculate.DecodeRequest(settings, keys, jnp.array([26, 4, 30]), jnp.array([-1]))


@pytest.mark.full
@pytest.mark.parametrize("verifier", [target_only(), token()], ids=lambda v: v.name)
def test_its_cache_is_that_of_the_committed_text(verifier):
  method = pair(TARGET, draft_model(target(SMALL), DEPTH + 1), verifier)
  tokens = np.random.default_rng(1).integers(V, size=(B, T)).astype(np.int32)
  request, capacity = request_of(), 40
  state = speculate.compiled_start(method, WEIGHTS, tokens, LENGTH, request, capacity)
  for _ in range(4):
    state = speculate.compiled_advance(method, WEIGHTS, request, state, jnp.int32(2))
    text, length, _ = state.context
    want, _ = target(SMALL).prefill(SMALL_PARAMS, text, length, capacity)
    np.testing.assert_array_equal(state.drafter.length, length - 1)
    pairs = zip(jax.tree.leaves(state.drafter.kv), jax.tree.leaves(want.kv), strict=True)
    for got, expected in pairs:
      for b, n in enumerate(np.asarray(length) - 1):
        np.testing.assert_allclose(got[b, :, :n], expected[b, :, :n], atol=1e-5)
  assert len(np.flatnonzero(state.stats.accepted.sum(0))) > 1  # cut back to several lengths


@pytest.mark.full
def test_its_distribution_is_what_its_tokens_were_drawn_from():
  drafter = draft_model(target(SMALL), DEPTH + 1)
  tokens = np.random.default_rng(1).integers(V, size=(B, T)).astype(np.int32)
  method, request = pair(TARGET, drafter, token()), request_of()
  state = speculate.compiled_start(method, WEIGHTS, tokens, LENGTH, request, 40)
  noise = Noise(request.key, state.context.length)
  draft, _ = jax.jit(drafter.propose)(
    SMALL_PARAMS, (), state.drafter, state.context, request.settings, noise
  )

  @functools.partial(jax.jit, static_argnums=1)
  def from_scratch(text, n, settings):
    features = target(SMALL).prefill(SMALL_PARAMS, text, jnp.array([n + DEPTH]), n + DEPTH)[1]
    return warp(target(SMALL).head(SMALL_PARAMS, features.hidden)[:, n - 1 :], settings)

  # The same text through one pass without a cache, and the same draws from its distribution.
  for b, n in enumerate(LENGTH):
    text = np.concatenate([tokens[b, :n], np.asarray(draft.tokens)[b, 1:]])[None]
    settings = jax.tree.map(lambda x, b=b: x[b : b + 1], request.settings)
    log_probs = from_scratch(text, int(n), settings)
    np.testing.assert_allclose(np.exp(draft.log_probs[b]), np.exp(log_probs[0]), atol=1e-5)
    for step in range(DEPTH):
      alone = Noise(request.key[b : b + 1], jnp.asarray(LENGTH[b : b + 1]))
      assert draft.tokens[b, step + 1] == alone.draw(DRAFT + step, log_probs[:, step])[0]


def test_it_drafts_one_token_at_least():
  with pytest.raises(
    ValueError, match=(r"`nodes` must be at least 2, so that a draft model drafts a token, got 1\.")
  ):
    draft_model(TARGET, 1)
