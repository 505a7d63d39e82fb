"""Chimera against its formulas in NumPy, on the text and the guesses as one row of states."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_eagle import MODEL, E, V, block, norm

from specjax.base import Features
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.chimera import ChimeraConfig, chimera
from specjax.models import transformer
from specjax.models.transformer import target

D, T = 3, 9
HEAD = chimera(target(MODEL), ChimeraConfig(D))


@functools.cache
def weights():
  """(target params, head params), random."""
  rng = np.random.default_rng(0)
  model = jax.eval_shape(functools.partial(transformer.init, MODEL), jax.random.key(0))
  own = jax.eval_shape(HEAD.init, jax.random.key(0), model)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape) / 2 + (len(x.shape) == 1), jnp.float32),
    (model, own),
  )


def expected(tokens, hidden, at: int, w, embedding, depth: int):
  """(the target's last state, the layer's row) from which `depth` is read at `at`."""
  rows = list(hidden[: at + 1])
  for newest in range(at + 1, at + 1 + depth):
    x = embedding[[tokens[max(i, 0)] for i in (newest - 2, newest - 1, newest)]].reshape(-1)
    z = w["trigram"] @ x
    rows.append(w["mix"] @ (z / (1 + np.exp(-z))))
  x, layer = np.stack(rows), w["layers"]["layer_0"]
  return np.concatenate(
    [hidden[at], block(layer, x, norm(x, layer["attention_norm"]["weight"]))[-1]]
  )


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_guess_is_made_of_three_tokens_the_text_and_the_guesses_above(at):
  model, own = weights()
  rng = np.random.default_rng(1)
  tokens = rng.integers(0, V, (1, T)).astype(np.int32)
  hidden = rng.normal(size=(1, T, E)).astype(np.float32)
  position = np.arange(T, dtype=np.int32)[None]
  examples = Examples(
    tokens, position, 0 * tokens, Features(jnp.asarray(hidden)), jnp.asarray([[at]], jnp.int32)
  )
  states = jax.jit(lambda own, model: drafting.unroll(HEAD, own, model, examples))(own, model)
  w, embedding = jax.tree.map(np.float64, (own["params"], model["params"]["embedding"]))
  for d, state in enumerate(states, 1):
    want = expected(tokens[0], np.float64(hidden[0]), at, w, embedding, d)
    np.testing.assert_allclose(HEAD.feature(state, d)[0, 0], want[E:], rtol=1e-4, atol=1e-4)
    logits = HEAD.read(own, model, state, d)[0, 0]
    np.testing.assert_allclose(logits, w["lm_head"][d - 1] @ want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_it_starts_from_the_targets_head_for_each_half():
  model, _ = weights()
  ids = np.array([1, 2, 5], np.int32)
  matrices = HEAD.init(jax.random.key(0), model, ids)["params"]["lm_head"]
  want = np.asarray(model["params"]["lm_head"])[ids]
  for matrix in matrices:
    np.testing.assert_array_equal(matrix, np.concatenate([want, want], 1))
