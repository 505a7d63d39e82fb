"""Medusa's heads, the tree they fill, and the state they carry."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Context, Draft, Evaluation, Verdict
from specjax.drafters.medusa import MedusaConfig, MedusaHeads, medusa
from specjax.testing import table_model

V = E = 6  # the table model's head is the identity
B = 2
TARGET = table_model(V)
CONFIG = MedusaConfig(V, E, heads=3, blocks=2)
HIDDEN = jax.random.normal(jax.random.key(0), (B, 4, E))


def init(config, seed: int = 0):
  return MedusaHeads(config).init(jax.random.key(seed), HIDDEN[0], lambda z: z)


def noisy(params, seed: int = 1):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)


@pytest.mark.parametrize("shared", [True, False])
def test_untrained_heads_are_the_lm_head(shared):
  config = dataclasses.replace(CONFIG, shared=shared)
  params = init(config)
  lm_head = jax.random.normal(jax.random.key(1), (V, E))
  if not shared:
    params["params"]["vocabulary"] = jnp.broadcast_to(lm_head, (3, V, E))
  logits = MedusaHeads(config).apply(params, HIDDEN[0], lambda z: z @ lm_head.T)
  assert len(logits) == 3
  for x in logits:
    np.testing.assert_allclose(x, HIDDEN[0] @ lm_head.T, atol=1e-5)


def test_a_head_is_its_formula():
  params = noisy(init(CONFIG))
  logits = MedusaHeads(CONFIG).apply(params, HIDDEN[0])
  p = {name: np.asarray(x, np.float64) for name, x in params["params"].items()}
  for head in range(3):
    z = np.asarray(HIDDEN[0], np.float64)
    for i in range(2):
      x = z @ p[f"block_{i}"][head].T + p[f"bias_{i}"][head]
      z = z + x / (1 + np.exp(-x))
    np.testing.assert_allclose(logits[head], z @ p["vocabulary"][head].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_a_node_is_its_ranks_guess_at_its_depth(shared):
  config = dataclasses.replace(CONFIG, shared=shared)
  params = noisy(init(config))
  choices = [[0], [2], [0, 1], [2, 0], [0, 1, 3]]
  drafter = medusa(TARGET, config, choices)
  assert (drafter.nodes, drafter.depth, drafter.proposal) == (6, 3, "point")
  context = Context(jnp.array([[1, 5, 0], [4, 0, 0]]), jnp.array([2, 1]))
  hidden = HIDDEN[:, 0]
  draft, state = drafter.propose(params, (), hidden, context, None, None)
  np.testing.assert_array_equal(state, hidden)
  logits = MedusaHeads(config).apply(params, hidden, lambda z: z)
  order = [np.argsort(-np.asarray(x), -1) for x in logits]
  assert draft.parent[0].tolist() == [0, 0, 0, 1, 2, 3]
  for b, root in enumerate((5, 4)):
    want = [root, *(order[len(path) - 1][b, path[-1]] for path in choices)]
    assert draft.tokens[b].tolist() == want
  assert bool(draft.valid.all())
  assert draft.law is None


def test_no_choices_are_plain_decoding():
  drafter = medusa(TARGET, CONFIG, [])
  context = Context(jnp.array([[1, 5]]), jnp.array([2]))
  draft, _ = drafter.propose(init(CONFIG), (), HIDDEN[:1, 0], context, None, None)
  assert (drafter.nodes, drafter.depth, draft.tokens.tolist()) == (1, 0, [[5]])


def test_the_state_is_what_predicted_the_root():
  drafter = medusa(TARGET, CONFIG, [[0], [1], [0, 0]])
  context = Context(jnp.zeros((B, 8), jnp.int32), jnp.array([4, 1]))
  state = drafter.init((), (), context, HIDDEN, 8)
  np.testing.assert_array_equal(state, jnp.stack([HIDDEN[0, 2], HIDDEN[1, 0]]))

  draft = Draft(*[jnp.zeros((B, 4), jnp.int32)] * 3, jnp.ones((B, 4), bool))
  fresh = jax.random.normal(jax.random.key(2), (B, 4, E))
  evaluation = Evaluation(fresh, fresh, None)
  verdict = Verdict(jnp.array([[0, 1, 3]] * B), jnp.array([2, 2]), jnp.zeros((B, 3), jnp.int32))
  for rows, want in (
    ([3, 1], [fresh[0, 3], fresh[1, 0]]),
    ([2, 0], [fresh[0, 1], state[1]]),  # cut by a budget; finished
  ):
    got = drafter.update((), (), state, draft, evaluation, verdict, jnp.array(rows))
    np.testing.assert_array_equal(got, jnp.stack(want))


@pytest.mark.parametrize(
  ("choices", "words"),
  [
    ([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], "choices is 4 deep: these heads predict 3"),
    ([[0], [6]], "choices has rank 6: the vocabulary has 6"),
    ([[0, 0]], "not its parent"),
  ],
)
def test_an_impossible_tree_is_an_error(choices, words):
  with pytest.raises(ValueError, match=words):
    medusa(TARGET, CONFIG, choices)
