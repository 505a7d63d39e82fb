"""Two models as one: their mixture by hand, and drafts of it through the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree
from specjax.models import transformer
from specjax.models.config import Config
from specjax.models.ensemble import ensemble
from specjax.models.transformer import target
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import WithoutReplacement
from specjax.verifiers import block, recursive

V, B, T, S = 3, 2, 6, 10
SMALL = Config(vocab_size=V, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=8)
TABLE = table_model(V)
TABLES = random_table(5, V), random_table(6, V)


def transformer_params():
  rng = np.random.default_rng(0)
  init = functools.partial(transformer.init, SMALL)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)


def softmax(x):
  x = np.exp(np.asarray(x, np.float64))
  return x / x.sum(-1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_its_distribution_is_the_mixture(weight):
  """After a prefill, a commit and at nodes of a tree; two caches of unlike shape."""
  models, params = (TABLE, target(SMALL)), (TABLES[0], transformer_params())
  whole = ensemble(*models, weight)
  tokens = np.random.default_rng(1).integers(0, V, (B, T)).astype(np.int32)
  length = np.array([T, 2], np.int32)
  path = np.array([[0, 2], [0, 1]], np.int32)
  nodes = np.array([[1, 0, 2], [2, 2, 0]], np.int32)
  depth = np.broadcast_to(np.array([0, 1, 1], np.int32), (B, 3))
  mask = np.broadcast_to(np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool), (B, 3, 3))
  rows = np.array([2, 1], np.int32)

  @functools.partial(jax.jit, static_argnums=0)
  def distributions(model, params):
    cache, features = model.prefill(params, tokens, length, S)
    first = model.evaluate(params, cache, nodes, depth, mask)
    cache = model.commit(cache, first.kv, path, rows)
    second = model.evaluate(params, cache, nodes, depth, mask)
    return model.head(params, features.hidden), first.logits, second.logits, cache.length

  got = distributions(whole, params)
  a, b = (distributions(model, own) for model, own in zip(models, params, strict=True))
  for mixed, of_a, of_b in zip(got[:3], a[:3], b[:3], strict=True):
    want = weight * softmax(of_a) + (1 - weight) * softmax(of_b)
    np.testing.assert_allclose(np.exp(mixed), want, atol=2e-6)
  np.testing.assert_array_equal(got[3], length - 1 + rows)


@pytest.mark.slow
@pytest.mark.full(but=["draft_tree-recursive"])
@pytest.mark.parametrize(
  ("drafter", "rule"),
  [
    (draft_model(ensemble(TABLE, TABLE, 0.4), 3), block()),
    (
      draft_tree(ensemble(TABLE, TABLE, 0.4), WithoutReplacement(((0,), (1,)))),
      recursive(),
    ),
  ],
  ids=lambda x: x.name,
)
def test_it_drafts_without_loss(drafter, rule):
  method = pair(TABLE, drafter, rule)
  for seed, temperature in ((0, 0.7), (1, 1.0)):
    logits = np.asarray(random_table(seed, V)["logits"])
    case = Case(logits, prompt=(0, 2), temperature=temperature)
    assert (
      total_variation(emitted_distribution(case, method, TABLES), target_distribution(case)) < 1e-6
    )


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ((TABLE, table_model(4), 0.5), r"`vocab_size`, got 3 and 4\."),
    ((TABLE, TABLE, 1.5), r"`weight` must be between 0 and 1, got 1\.5\."),
  ],
)
def test_impossible_pairs_are_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    ensemble(*arguments)


def test_it_has_no_layers_to_tap():
  with pytest.raises(
    ValueError,
    match=(
      r"`hidden_layers` must be \(\) for an ensemble, which has no layers of its own, got "
      r"\(1,\)\."
    ),
  ):
    ensemble(TABLE, TABLE).prefill(TABLES, None, None, 4, hidden_layers=(1,))
