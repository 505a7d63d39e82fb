"""On one CPU a pass over a tree has the bits of passes over a token at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.kernels import compiled

PROMPT, TOKENS, NODES = 59, 12, 5  # a block of 64 rows ends between them


@pytest.fixture
def one_cpu(monkeypatch):
  if not compiled.available():
    pytest.skip("there is no C++ compiler")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  jax.clear_caches()
  yield
  jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("weights", "activations"),
  [
    ("float", "float"),
    ("bfloat16", "float"),
    ("int8", "float"),
    ("int4", "float"),
    ("int4", "int8"),
  ],
)
def test_logits_of_a_tree_are_those_of_a_token_at_a_time(weights, activations, one_cpu):
  model = specjax.load("gsm8k-7m", weights=weights, activations=activations)
  target, rng = model.target, np.random.default_rng(0)
  text = jnp.asarray(rng.integers(0, target.vocab_size, (1, PROMPT + TOKENS)), jnp.int32)
  length = jnp.array([PROMPT], jnp.int32)
  evaluate, commit = jax.jit(target.evaluate), jax.jit(target.commit)

  def read(nodes):
    """Logits [TOKENS, V] of passes over a chain of `nodes` and a node that hangs from its root."""
    cache, _ = target.prefill(model.params, text[:, :PROMPT], length, PROMPT + TOKENS + NODES)
    found = []
    for start in range(PROMPT - 1, PROMPT - 1 + TOKENS, nodes):
      own = jnp.pad(text[:, start : start + nodes], ((0, 0), (0, 1)), constant_values=7)
      depth = jnp.arange(nodes + 1, dtype=jnp.int32)[None].at[0, nodes].set(min(nodes, 1))
      mask = jnp.tril(jnp.ones((1, nodes + 1, nodes + 1), bool))
      mask = mask.at[0, nodes, 1:nodes].set(False)
      seen = evaluate(model.params, cache, own, depth, mask)
      found.append(seen.logits[0, :nodes])
      path = jnp.arange(nodes, dtype=jnp.int32)[None]
      cache = commit(cache, seen.kv, path, jnp.full(1, nodes, jnp.int32))
    return np.concatenate(found)

  one, several = read(1), read(NODES + 1)
  np.testing.assert_array_equal(one, several)
