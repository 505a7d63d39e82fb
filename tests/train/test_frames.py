"""CTC against the sum over all alignments, and the alignment that counts hits against a search."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.train.recipe import frames

V, D, L = 4, 5, 3  # four tokens, and the blank is 4


def folded(symbols) -> tuple[int, ...]:
  told = [x for i, x in enumerate(symbols) if i == 0 or x != symbols[i - 1]]
  return tuple(x for x in told if x != V)


def log_softmax(x):
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def cases():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 3, D, V + 1)).astype(np.float32) * 2
  labels = rng.integers(0, V, (2, 3, D)).astype(np.int32)
  labels[0, 0, :3] = 2  # each needs a blank before it
  known = np.ones((2, 3, D), bool)
  known[0, 1, 1] = known[1, 0, 0] = known[1, 2, 2] = False
  return logits, labels, known


def test_the_loss_sums_over_all_alignments():
  logits, labels, known = cases()
  values = []
  for b, m in np.ndindex(2, 3):
    some = labels[b, m, : int(np.cumprod(known[b, m, :L]).sum())]
    if len(some):
      rows, total = log_softmax(logits[b, m].astype(np.float64)), 0.0
      for symbols in itertools.product(range(V + 1), repeat=D):
        if folded(symbols) == tuple(some):
          total += np.exp(rows[range(D), symbols].sum())
      values.append(-np.log(total))
  assert len(values) == 5
  got = jax.jit(frames.loss)(logits, labels, known)
  np.testing.assert_allclose(got, np.mean(values), rtol=1e-5)


@pytest.mark.slow
def test_positions_without_a_known_token_count_nothing():
  logits, labels, known = cases()
  value, gradient = jax.value_and_grad(frames.loss)(jnp.asarray(logits), labels, known & False)
  assert value == 0 and not gradient.any()
  gradient = jax.grad(frames.loss)(jnp.asarray(logits), labels, known)
  assert np.isfinite(gradient).all() and not gradient[1, 0].any() and gradient[0, 0].any()


@pytest.mark.parametrize("seed", range(5))
def test_a_frame_says_the_likeliest_symbol_that_keeps_to_the_text(seed):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(1, 1, D, V + 1)).astype(np.float32)
  labels = rng.integers(0, 2, (1, 1, D)).astype(np.int32)
  known = np.ones((1, 1, D), bool)
  known[0, 0, 3] = seed % 2
  most = int(np.cumprod(known).sum())
  said, told = frames.Said(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)), []
  text = tuple(labels[0, 0, :most].tolist())
  for d in range(D):
    symbol, said = frames.follow(logits[:, :, d], labels, known, said)
    able = [x for x in range(V + 1) if text[: len(y := folded((*told, x)))] == y]
    told.append(int(symbol[0, 0]))
    assert told[-1] == max(able, key=lambda x: logits[0, 0, d, x])
    assert int(said.number[0, 0]) == len(folded(told))
