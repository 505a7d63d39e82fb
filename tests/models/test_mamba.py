"""A layer of Mamba-2 against the same layer token by token, in NumPy and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import recurrence
from specjax.models.config import Config, Mamba
from specjax.models.mamba import Mamba2
from specjax.trees.structure import ancestors

H, F, C, K, W, E = 4, 6, 5, 2, 4, 12
INNER, X = H * F, H * F + 2 * K * C
CONFIG = Config(
  vocab_size=8, width=E, layers=2, heads=2, kv_heads=2, head_dim=4, mlp_width=8, norm_epsilon=1e-3,
  recurrence=Mamba(H, F, C, K, W, (0.2, 1.5)),
)  # fmt: skip
PARENT = np.array([0, 0, 0, 1, 1, 3, 5, 5, 2])  # 5 deep
T = 6  # tokens before the tree
rng = np.random.default_rng(0)
SHAPES = {
  "zxbct": (INNER + X + H, E), "kernel": (X, 1, W), "kernel_bias": (X,), "log_slope": (H,),
  "time_bias": (H,), "skip": (H,), "norm": (INNER,), "out": (E, INNER),
}  # fmt: skip
WEIGHTS = {name: rng.normal(0, 0.5, shape) for name, shape in SHAPES.items()}
PARAMS = {"params": {name: jnp.asarray(x, jnp.float32) for name, x in WEIGHTS.items()}}
run = jax.jit(Mamba2(CONFIG).apply)


@jax.jit
def committed(left, inputs, path, rows):
  """The state behind the first rows of a path of nodes that begin a text."""
  return recurrence.commit(recurrence.begun(left, inputs, W), left, inputs, path, rows)


def silu(x):
  return x / (1 + np.exp(-x))


def chain(xs):
  """[T, E] of tokens xs [T, E] in a row, and what they read [T, H, F]: section 2's recurrence, a
  step after the other."""
  w, window, memory, out, reads = WEIGHTS, np.zeros((W, X)), np.zeros((H, C, F)), [], []
  for x in xs:
    z, inputs, time = np.split(w["zxbct"] @ x, [INNER, INNER + X])
    window = np.concatenate([window[1:], inputs[None]])
    mixed = silu((window * w["kernel"][:, 0].T).sum(0) + w["kernel_bias"])
    values, keys, queries = np.split(mixed, [INNER, INNER + K * C])
    values = values.reshape(H, F)
    step = np.clip(np.log1p(np.exp(time + w["time_bias"])), 0.2, 1.5)
    y = np.empty((H, F))
    for h in range(H):
      own = slice(h // (H // K) * C, (h // (H // K) + 1) * C)
      memory[h] *= np.exp(-np.exp(w["log_slope"][h]) * step[h])
      memory[h] += step[h] * np.outer(keys[own], values[h])
      y[h] = queries[own] @ memory[h] + w["skip"][h] * values[h]
    reads.append(y)
    y = (y.reshape(-1) * silu(z)).reshape(K, -1)
    y = y / np.sqrt((y**2).mean(1, keepdims=True) + 1e-3)
    out.append(w["out"] @ (y.reshape(-1) * w["norm"]))
  return np.array(out), np.array(reads)


def test_a_tree_behind_a_text_is_one_chain_for_each_leaf():
  text, nodes = rng.normal(size=(2, T, E)), rng.normal(size=(2, len(PARENT), E))
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (2, T, T))
  out, left, inputs = run(PARAMS, jnp.asarray(text, jnp.float32), causal, None)
  for b in range(2):
    np.testing.assert_allclose(out[b], chain(text[b])[0], rtol=0, atol=1e-5)

  length = np.array([T, 2])  # of a text a part, whose rest is padding
  path = jnp.broadcast_to(jnp.arange(T), (2, T))
  state = committed(left, inputs, path, jnp.asarray(length))
  mask = ancestors(jnp.broadcast_to(jnp.asarray(PARENT), (2, len(PARENT))), 5)
  found, left, _ = run(PARAMS, jnp.asarray(nodes, jnp.float32), mask, state)
  for b in range(2):
    for leaf in (4, 6, 7, 8):
      path = [leaf]
      while path[0]:
        path.insert(0, PARENT[path[0]])
      want, read = chain(np.concatenate([text[b, : length[b]], nodes[b, path]]))
      at, since = jnp.array(path), length[b]
      np.testing.assert_allclose(found[b, at], want[since:], rtol=0, atol=1e-5)
      readout = left.read[b][:, at].swapaxes(0, 1)
      np.testing.assert_allclose(readout, read[since:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  ("sizes", "words"),
  [
    ({"groups": 3}, "`heads` must be a multiple of groups=3, got 4"),
    ({"step": (0.5, 0.1)}, r"`step` must be two numbers, .* smaller, got \(0.5, 0.1\)"),
    ({"kernel": 1}, "`kernel` must be between 2"),
  ],
)
def test_layers_that_are_none(sizes, words):
  with pytest.raises(ValueError, match=words):
    Mamba(4, 6, 5, **sizes)
