"""Medusa's heads, the tree they fill, and the state they carry."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Context, Draft, Evaluation, Features, Verdict
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.models.config import Config
from specjax.models.transformer import target

V, E, B, D = 6, 4, 2, 3
MODEL = Config(V, E, layers=1, heads=1, kv_heads=1, head_dim=2, mlp_width=2)
CONFIG = MedusaConfig(D, blocks=2)
HIDDEN = jax.random.normal(jax.random.key(0), (B, 4, E))
LM_HEAD = np.random.default_rng(0).normal(size=(V, E)).astype(np.float32)
TARGET = {"params": {"embedding": jnp.asarray(LM_HEAD)}}
SOME = np.array([1, 2, 5], np.int32)  # a reduced draft vocabulary
AT = jnp.array([[0, 3, 1], [2, 2, 0]])


def init(config, vocabulary=None):
  return medusa(target(MODEL), config).init(jax.random.key(0), TARGET, vocabulary)


def noisy(params, seed: int = 1):
  rng = np.random.default_rng(seed)
  trained = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params["params"]
  )
  return params | {"params": trained}


def logits_at(config, params, at):
  """f32[B, M, W] of each depth."""
  tokens = jnp.zeros((B, 4), jnp.int32)
  examples = Examples(tokens, tokens, tokens, Features(HIDDEN), at)
  head = medusa(target(MODEL), config)
  states = drafting.unroll(head, params, TARGET, examples)
  return [head.read(params, TARGET, state, d) for d, state in enumerate(states, 1)]


def formula(config, params, hidden) -> list[np.ndarray]:
  """z = h + SiLU(W h + b) block by block, in numpy: logits [..., W] of each depth."""
  p = {name: np.asarray(x, np.float64) for name, x in params["params"].items()}
  ids, logits = params.get("vocabulary", np.arange(V)), []
  for d in range(config.depth):
    z = np.asarray(hidden, np.float64)
    for i in range(config.blocks):
      x = z @ p[f"block_{i}"][d].T + p[f"bias_{i}"][d]
      z = z + x / (1 + np.exp(-x))
    logits.append(z @ (LM_HEAD[ids] if config.shared else p["lm_head"][d]).T)
  return logits


VARIANTS = pytest.mark.parametrize(
  ("shared", "vocabulary"), [(True, None), (False, None), (True, SOME), (False, SOME)]
)


@VARIANTS
def test_untrained_heads_are_the_lm_head(shared, vocabulary):
  config = dataclasses.replace(CONFIG, shared=shared)
  logits = logits_at(config, init(config, vocabulary), AT)
  assert len(logits) == D
  matrix = LM_HEAD if vocabulary is None else LM_HEAD[vocabulary]
  for x in logits:
    for b, m in np.ndindex(*AT.shape):
      np.testing.assert_allclose(x[b, m], matrix @ HIDDEN[b, AT[b, m]], atol=1e-5)


@VARIANTS
def test_a_head_is_its_formula(shared, vocabulary):
  config = dataclasses.replace(CONFIG, shared=shared)
  params = noisy(init(config, vocabulary))
  want = formula(config, params, np.stack([HIDDEN[b, AT[b]] for b in range(B)]))
  for got, x in zip(logits_at(config, params, AT), want, strict=True):
    np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-4)


@VARIANTS
def test_a_node_is_its_ranks_guess_at_its_depth(shared, vocabulary):
  config = dataclasses.replace(CONFIG, shared=shared)
  params = noisy(init(config, vocabulary))
  choices = ((0,), (2,), (0, 1), (2, 0), (0, 1, 2))
  drafter = drafting.drafter(medusa(target(MODEL), config), choices)
  assert (drafter.nodes, drafter.depth, drafter.proposal) == (6, 3, "deterministic")
  context = Context(jnp.array([[1, 5, 0], [4, 0, 0]]), jnp.array([2, 1]))
  hidden = HIDDEN[:, 0]
  draft, state = drafter.propose(params, TARGET, hidden, context, None, None)
  np.testing.assert_array_equal(state, hidden)
  ids = np.arange(V) if vocabulary is None else vocabulary
  order = [ids[np.argsort(-x, -1)] for x in formula(config, params, hidden)]
  assert draft.parent[0].tolist() == [0, 0, 0, 1, 2, 3]
  for b, root in enumerate((5, 4)):
    want = [root, *(order[len(path) - 1][b, path[-1]] for path in choices)]
    assert draft.tokens[b].tolist() == want
  assert bool(draft.valid.all())
  assert draft.log_probs is None


def test_no_choices_are_plain_decoding():
  drafter = drafting.drafter(medusa(target(MODEL), CONFIG), ())
  context = Context(jnp.array([[1, 5]]), jnp.array([2]))
  draft, _ = drafter.propose(init(CONFIG), TARGET, HIDDEN[:1, 0], context, None, None)
  assert (drafter.nodes, drafter.depth, draft.tokens.tolist()) == (1, 0, [[5]])


def test_the_state_is_what_predicted_the_root():
  drafter = drafting.drafter(medusa(target(MODEL), CONFIG), ((0,), (1,), (0, 0)))
  context = Context(jnp.zeros((B, 8), jnp.int32), jnp.array([4, 1]))
  state = drafter.init((), (), context, Features(HIDDEN), 8)
  np.testing.assert_array_equal(state, jnp.stack([HIDDEN[0, 2], HIDDEN[1, 0]]))

  draft = Draft(*[jnp.zeros((B, 4), jnp.int32)] * 3, jnp.ones((B, 4), bool))
  fresh = jax.random.normal(jax.random.key(2), (B, 4, E))
  evaluation = Evaluation(fresh, Features(fresh), None)
  verdict = Verdict(jnp.array([[0, 1, 3]] * B), jnp.array([2, 2]), jnp.zeros((B, 3), jnp.int32))
  for rows, want in (
    ([3, 1], [fresh[0, 3], fresh[1, 0]]),
    ([2, 0], [fresh[0, 1], state[1]]),  # cut by a budget; finished
  ):
    got = drafter.update((), (), state, draft, evaluation, verdict, jnp.array(rows))
    np.testing.assert_array_equal(got, jnp.stack(want))


@pytest.mark.parametrize(
  ("choices", "vocabulary", "words"),
  [
    (((0,), (0, 0), (0,) * 3, (0,) * 4), None, "tree is 4 deep: the head guesses 3"),
    (((0,), (6,)), None, "tree has rank 6: the head guesses among 6"),
    (((0,), (3,)), SOME, "tree has rank 3: the head guesses among 3"),
    (((0, 0),), None, "not its parent"),
  ],
)
def test_an_impossible_tree_is_an_error(choices, vocabulary, words):
  context = Context(jnp.array([[1, 5]]), jnp.array([2]))
  with pytest.raises(ValueError, match=words):
    drafter = drafting.drafter(medusa(target(MODEL), CONFIG), choices)
    drafter.propose(init(CONFIG, vocabulary), TARGET, HIDDEN[:1, 0], context, None, None)
