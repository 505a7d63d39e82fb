"""Where rounding would show: logits in bfloat16, refusals that cannot happen, no support."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.base import Draft
from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree
from specjax.sampling import Settings, warp
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import IID, WithoutReplacement
from specjax.verifiers import block, k_seq, recursive, token, traversal

V = 3
MODEL = table_model(V)
PAIR = ((0,), (1,))
RULES = {
  "token": (draft_model(MODEL, 3), token()),
  "block": (draft_model(MODEL, 3), block()),
  "recursive": (draft_tree(MODEL, WithoutReplacement(PAIR)), recursive()),
  "traversal": (draft_tree(MODEL, WithoutReplacement(PAIR)), traversal()),
  "k_seq": (draft_tree(MODEL, IID(PAIR)), k_seq()),
}


def test_the_distribution_of_bfloat16_logits_is_float32():
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 50)), jnp.bfloat16)
  settings = Settings(*(jnp.array(x) for x in ([0.7, 1.0], [0, 9], [0.9, 1.0], [0.0, 0.0])))
  log_probs = warp(logits, settings)
  assert log_probs.dtype == jnp.float32
  np.testing.assert_array_equal(log_probs, warp(logits.astype(jnp.float32), settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block", "recursive"])
def test_bfloat16_models_are_sampled_exactly(name):
  """Logits of both models have 8 bits; what is emitted is the distribution of these very logits."""

  def rough(params, *rest, **keywords):
    evaluation = MODEL.evaluate(params, *rest, **keywords)
    logits = jax.lax.reduce_precision(evaluation.logits, exponent_bits=8, mantissa_bits=7)
    return evaluation._replace(logits=logits)

  rough_model = dataclasses.replace(MODEL, evaluate=rough)
  drafter = {
    "block": draft_model(rough_model, 3),
    "recursive": draft_tree(rough_model, WithoutReplacement(PAIR)),
  }[name]
  exact = np.asarray(random_table(3, V)["logits"])
  rounded = np.asarray(jnp.asarray(exact, jnp.bfloat16), np.float32)
  case = Case(rounded, temperature=0.9, top_p=0.9)
  method = pair(rough_model, drafter, RULES[name][1])
  emitted = emitted_distribution(case, method, random_table(4, V))
  assert total_variation(emitted, target_distribution(case)) < 1e-6
  unrounded = Case(exact, temperature=0.9, top_p=0.9)
  assert total_variation(emitted, target_distribution(unrounded)) > 1e-4


class Refusing:
  """All coins fall on the wrong side, though p = q; draws take the likeliest."""

  def accept(self, stream, p, q):
    return jnp.zeros(p.shape, bool)

  def draw(self, stream, log_probs):
    assert log_probs.shape[-1] == V
    return jnp.argmax(log_probs, -1).astype(jnp.int32)


@pytest.mark.parametrize("name", RULES)
def test_a_refusal_that_cannot_happen_draws_from_p(name):
  drafter, rule = RULES[name]
  chain = drafter.proposal == "chain"
  N = 3
  parent = jnp.array([[0, 0, 1]] if chain else [[0, 0, 0]])
  depth = jnp.array([[0, 1, 2]] if chain else [[0, 1, 1]])
  log_probs = jnp.log(jnp.broadcast_to(jnp.array([0.0, 0.25, 0.75]), (1, N, V)))
  # Siblings without replacement are all that p can say, so nothing is left after the second.
  draft = Draft(jnp.array([[0, 1, 2]]), parent, depth, jnp.ones((1, N), bool), log_probs)
  kind = {"depth": drafter.depth, "proposal": drafter.proposal}
  verdict = rule.verify((), draft, log_probs, None, Refusing(), **kind)
  assert int(verdict.count[0]) == 0
  assert int(verdict.tokens[0, 0]) in (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_nan_is_never_a_token(name):
  """The row fails and emits nothing, whatever the rule does with a distribution of NaN."""
  drafter, rule = RULES[name]
  method = pair(MODEL, drafter, rule)
  table = {"logits": random_table(5, V)["logits"].at[:, 1].set(jnp.nan)}
  weights = speculate.Weights(table, random_table(6, V))
  one = jnp.ones(1)
  request = speculate.DecodeRequest(
    Settings(one, jnp.zeros(1, jnp.int32), one, 0 * one), jax.random.split(jax.random.key(0), 1),
    jnp.array([12]), jnp.array([-1]),
  )  # fmt: skip
  tokens, length = jnp.array([[0, 1]]), jnp.array([2])
  state = speculate.compiled_start(method, weights, tokens, length, request, 32)
  state = speculate.compiled_advance(method, weights, request, state, jnp.int32(9))
  assert bool(state.failed[0]) and bool(state.done[0])
  assert int(state.context.length[0]) == 2 and int(state.stats.emitted[0]) == 0
