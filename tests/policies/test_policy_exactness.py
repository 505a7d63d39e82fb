"""Policies in the shipped loop: a draft that is stopped leaves the target's law as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import speculate
from specjax.drafters import draft_model
from specjax.policies import adaedl, confidence, marginal, specdecpp, static
from specjax.policies.policy import Observation, Policy
from specjax.policies.specdecpp import AcceptanceHead
from specjax.testing import (
  Case,
  emitted_law,
  random_table,
  table_model,
  target_law,
  total_variation,
)  # fmt: skip
from specjax.verifiers import target_only, token

V, D = 3, 2
HEAD = AcceptanceHead().init(jax.random.key(1), jnp.zeros((1, V)))
DRAFT = draft_model(table_model(V), D)


def stopped(policy: Policy):
  """The draft model with a policy. What comes after a stop is drawn too, and not used."""
  params = HEAD if policy.name == "specdecpp" else ()

  def init(*args):
    return DRAFT.init(*args), policy.init(args[2].length.shape[0])

  def propose(params_, target_params, state, context, settings, noise):
    draft, inner = DRAFT.propose(params_, target_params, state[0], context, settings, noise)
    live, valid, state = jnp.ones_like(draft.valid[:, 0]), [draft.valid[:, 0]], state[1]
    for j in range(D):
      seen = Observation(j, draft.law[:, j], None, jnp.exp(draft.law[:, j]))
      if policy.looks_at_token:
        seen = seen._replace(token=draft.tokens[:, j + 1])
      ends, state = policy.stop(params, state, seen)
      kept = live if policy.looks_at_token and not policy.drops else live & ~ends
      valid.append(kept)
      live = live & ~ends
    return draft._replace(valid=jnp.stack(valid, 1)), (inner, state)

  def update(params_, target_params, state, draft, evaluation, verdict, rows):
    inner = DRAFT.update(params_, target_params, state[0], draft, evaluation, verdict, rows)
    drafted = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
    return inner, policy.update(state[1], verdict.count, drafted)

  return DRAFT._replace(init=init, propose=propose, update=update)


def off(policy: Policy, rule, rounds: int = 1) -> float:
  """The largest total variation over two pairs of tables."""
  method = speculate.method(table_model(V), stopped(policy), rule)
  found = []
  for seed in range(2):
    case = Case(np.asarray(random_table(seed, V)["logits"]), prompt=(0, 2))
    params = random_table(100 + seed, V)
    found.append(
      total_variation(emitted_law(case, method, params, rounds=rounds), target_law(case))
    )
  return max(found)


@pytest.mark.parametrize(
  "policy",
  [
    static(1), adaedl(0.6, shortest=0), marginal(0.4), confidence(0.5),
    specdecpp(risk=0.5, shortest=1),
  ],
  ids=lambda policy: policy.name,
)  # fmt: skip
def test_stopping_before_a_token_or_after_it_is_exact(policy):
  assert off(policy, token()) < 1e-6


def test_a_threshold_that_moves_from_round_to_round_is_exact():
  assert off(confidence(0.5, longest=D, step=4.0), token(), rounds=2) < 1e-6


def test_dropping_a_token_is_exact_where_the_draft_is_not_looked_at():
  drops = confidence(0.5, keep=False)
  assert off(drops, target_only()) < 1e-6
  assert off(drops, token()) > 0.03
