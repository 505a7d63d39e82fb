"""Every fault is seen where the rule looks, and only there."""

import numpy as np
import pytest

from specjax.decoding.method import method as pair
from specjax.drafters import draft_model, draft_tree
from specjax.testing import Case, random_table, table_model
from specjax.testing.faults import FAULTS, distances
from specjax.trees import WithoutReplacement
from specjax.verifiers import recursive, target_only, token

V = 3
MODEL = table_model(V)
CASES = [Case(np.asarray(random_table(s, V)["logits"]), temperature=0.8) for s in range(3)]
ALWAYS = {"row of the child", "last token redrawn"}
OF_Q = {"p for q", "p and q swapped", "q padded", "q rounded"}
OF_SIBLINGS = {"siblings reversed", "child duplicated", "distribution forgets siblings"}
CHAIN = draft_model(MODEL, 3)
DISTINCT = draft_tree(MODEL, WithoutReplacement(((0,), (1,))))

SEEN = {
  "token": (CHAIN, token(), ALWAYS | OF_Q, set()),
  "recursive": (DISTINCT, recursive(), ALWAYS | OF_SIBLINGS | {"p for q"}, set()),
  "target_only": (
    DISTINCT, target_only(), {"last token redrawn", "p and q swapped"},
    {"q padded", "siblings reversed"},
  ),
}  # fmt: skip


@pytest.mark.full(but=["target_only"])
@pytest.mark.parametrize("name", SEEN)
def test_a_fault_is_seen_where_the_rule_looks(name):
  drafter, rule, seen, harmless = SEEN[name]
  method = pair(MODEL, drafter, rule)
  found = distances(CASES, method, random_table(100, V), faults=sorted(seen | harmless))
  for fault, distance in found.items():
    assert distance > 1e-3 if fault in seen else distance < 1e-6, (fault, distance)


def test_every_fault_is_seen_by_someone():
  assert set().union(*(seen for _, _, seen, _ in SEEN.values())) == set(FAULTS)
