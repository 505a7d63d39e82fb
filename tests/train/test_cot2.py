"""Chains of thought in mixtures of tokens, beside whole texts of tokens, and their task."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentences import says

from specjax.data import signed_sums
from specjax.models import continuous, transformer
from specjax.models.config import Config
from specjax.sampling import request_keys
from specjax.train import cot2
from specjax.train.recipe.config import Network, Training

V, T, STEPS = 11, 4, 3
SHAPE = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=24, max_length=16
)
PARAMS = jax.tree.map(lambda x: 8 * x, transformer.init(SHAPE, jax.random.key(1)))
TOKENS = jnp.asarray(np.random.default_rng(0).integers(V, size=(3, T)), jnp.int32)
KEYS = request_keys(5, np.arange(3))


@functools.partial(jax.jit, static_argnums=0)
def thought(choose):
  return continuous.think(SHAPE, PARAMS, TOKENS, STEPS, choose, KEYS)


def after(text: np.ndarray) -> np.ndarray:
  """log p[V] of what follows a text of tokens, by the network that reads tokens."""
  place, seen = np.arange(len(text)), np.tri(len(text), dtype=bool)
  hidden, _ = transformer.Transformer(SHAPE).apply(PARAMS, text[None], place[None], seen[None])
  logits = transformer.target(SHAPE).head(PARAMS, hidden)[0, -1]
  return np.asarray(jax.nn.log_softmax(logits))


@pytest.mark.slow
def test_a_discrete_chain_is_greedy_decoding():
  said = np.asarray(thought(continuous.likeliest))
  for b, text in enumerate(np.asarray(TOKENS)):
    for step in range(STEPS):
      np.testing.assert_allclose(said[b, step], after(text), atol=2e-5)
      text = np.append(text, said[b, step].argmax())


@pytest.mark.slow
@pytest.mark.full(but=["drawn"])
@pytest.mark.parametrize("choose", [continuous.whole, continuous.drawn(3)], ids=["whole", "drawn"])
def test_thoughts_that_are_read_at_once_are_those_that_were_thought(choose):
  seen = []

  def kept(probs, keys):
    seen.append(choose(probs, keys))
    return seen[-1]

  said = continuous.think(SHAPE, PARAMS, TOKENS, STEPS, kept, KEYS)
  again = continuous.taught(SHAPE, PARAMS, TOKENS, jnp.stack(seen, 1))
  np.testing.assert_allclose(jax.nn.log_softmax(again), said, atol=2e-5)
  np.testing.assert_allclose(jnp.stack(seen).sum(-1), 1, atol=1e-6)


def test_draws_are_averaged():
  probs = jnp.broadcast_to(jnp.array([0.5, 0.0, 0.2, 0.3]), (4000, 4))
  weights = np.asarray(continuous.drawn(3)(probs, request_keys(0, np.arange(4000))))
  np.testing.assert_allclose(weights * 3, np.round(weights * 3), atol=1e-6)
  np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
  np.testing.assert_allclose(weights.mean(0), probs[0], atol=0.02)
  # each draw by itself: the variance of a mean of three
  np.testing.assert_allclose(weights.var(0), probs[0] * (1 - probs[0]) / 3, atol=0.01)


def test_targets_are_the_partial_sums_of_the_best_traces():
  numbers, largest = [3, 1, 2], 4
  rows = {n: signed_sums.examples(np.array([numbers]), largest, n) for n in (0, 1, 8)}
  S = 3 * largest
  assert rows[8].tokens.tolist() == [[S + 3, S + 1, S + 2, 2 * S + 1]]
  sums = [list(itertools.accumulate(np.multiply(numbers, signs)))
          for signs in itertools.product((1, -1), repeat=3)]  # fmt: skip
  for step in range(2):
    want = np.bincount([trace[step] + S for trace in sums], minlength=2 * S + 2) / 8
    np.testing.assert_allclose(rows[8].target[0, step], want)
  answer = np.eye(2 * S + 2)[S]  # 3 - 1 - 2
  for n in rows:
    np.testing.assert_array_equal(rows[n].target[0, -1], answer)
  assert rows[0].target.shape == (1, 1, 2 * S + 2)
  assert rows[1].target[0].argmax(-1).tolist() == [S + 3, S + 2, S]
  best = signed_sums.traces(np.array([[1, 4, 1]]))[0, :, -1].tolist()
  assert best[:4] == [2, 4, 4, 6] and sorted(best[4:]) == [-6, -4, -4, -2]


def test_orders_of_the_same_numbers_stay_together():
  some = signed_sums.problems(3, 4, 1000, 0)
  assert sorted(map(tuple, some.tolist())) == [*itertools.product(range(1, 5), repeat=3)]
  parts = [{tuple(sorted(x)) for x in part.tolist()} for part in signed_sums.split(some, 0.25, 1)]
  assert not parts[0] & parts[1] and list(map(len, parts)) == [15, 5]


@pytest.mark.slow
def test_three_kinds_of_chains_learn_and_are_measured(tmp_path):
  config = cot2.Config(
    str(tmp_path), numbers=2, largest=3, held_out=0.3, samples=(2,),
    network=Network(width=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_width=32),
    training=Training(steps=60, batch=4, rate=1e-2, warmup=5, devices=1),
  )  # fmt: skip
  cot2.main(config)
  report = json.loads((tmp_path / "report.json").read_text())
  assert 2 <= report["held out"] <= 4
  assert [*report["right %"]] == [
    "none", "discrete", "discrete, 2 drawn", "continuous", "continuous, 2 drawn",
  ]  # fmt: skip
  for name in ("none", "discrete", "continuous"):
    lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 60 and np.mean(losses[-5:]) < losses[0] / 2


@pytest.mark.parametrize(
  ("call", "words"),
  [
    (lambda: signed_sums.problems(1, 9, 5, 0), "`numbers` must be between 2 and 8, got 1."),
    (lambda: continuous.drawn(0), "`count` must be between 1 and .. got 0."),
    (
      lambda: signed_sums.split(np.array([[1, 2]]), 0.5, 0),
      "`held_out` must leave problems on both sides, got 0.5.",
    ),
    (
      lambda: continuous.check(dataclasses.replace(SHAPE, causal=False)),
      "`config` must be causal for mixtures of tokens, without recurrent layers or embeddings",
    ),
  ],
)
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(ValueError) as error:
    call()
  assert says(str(error.value), words)
