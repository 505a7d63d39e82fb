"""Policies in the shipped loop: a draft that is stopped leaves the target's distribution alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding.method import method as pair
from specjax.draft_length import (
  DRAFT_LENGTHS,
  adaedl,
  confidence,
  constant,
  heuristic,
  marginal,
  specdecpp,
  survival,
)
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.drafters import adaptive_model
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)  # fmt: skip
from specjax.verifiers import block, greedy, target_only, token

V, D = 3, 2
HEAD = AcceptanceHead().init(jax.random.key(1), jnp.zeros((1, V)))
KEEPING = {
  "constant": constant(1), "heuristic": heuristic(1, D), "adaedl": adaedl(0.6, D, shortest=0),
  "marginal": marginal(0.4), "confidence": confidence(0.5, D, step=4.0),
  "specdecpp": specdecpp(risk=0.5, shortest=1, longest=D), "survival": survival(0.4, 0),
}  # fmt: skip
DROPS = confidence(0.5, D, keep=False)


def off(policy, rule, rounds: int = 1, **settings) -> float:
  """The largest total variation over two pairs of tables."""
  method = pair(table_model(V), adaptive_model(table_model(V), policy, D + 1), rule)
  found = []
  for seed in range(2):
    case = Case(np.asarray(random_table(seed, V)["logits"]), prompt=(0, 2), **settings)
    params = random_table(100 + seed, V), HEAD if policy.name == "specdecpp" else ()
    log_probs = emitted_distribution(case, method, params, rounds=rounds)
    found.append(total_variation(log_probs, target_distribution(case)))
  return max(found)


def test_every_policy_is_here():
  assert KEEPING.keys() == DRAFT_LENGTHS.keys()


@pytest.mark.slow
@pytest.mark.full(
  but=[
    "confidence-token",
    "specdecpp-token",
    "marginal-token",
    "adaedl-token",
    "heuristic-target_only",
  ]
)
@pytest.mark.parametrize("rule", [token(), block(), target_only()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", KEEPING)
def test_stopping_before_a_token_or_after_it_is_exact(name, rule):
  assert off(KEEPING[name], rule, temperature=0.8) < 1e-6


@pytest.mark.slow
@pytest.mark.full(but=["heuristic"])
@pytest.mark.parametrize("name", [name for name in KEEPING if name != "constant"])
def test_a_state_that_moves_from_round_to_round_is_exact(name):
  assert off(KEEPING[name], token(), rounds=2) < 1e-6


@pytest.mark.slow
@pytest.mark.full(but=["confidence"])
@pytest.mark.parametrize("name", KEEPING)
def test_greedy_tokens_are_the_targets(name):
  assert off(KEEPING[name], greedy(), rounds=2, temperature=0.0) < 1e-6


@pytest.mark.slow
@pytest.mark.full(but=["token", "block"])
@pytest.mark.parametrize("rule", [token(), block(), target_only()], ids=lambda rule: rule.name)
def test_dropping_a_token_is_exact_with_the_distribution_of_what_is_kept(rule):
  assert off(DROPS, rule) < 1e-6
