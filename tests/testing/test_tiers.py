"""The quick tier proves a rule of every kind, and holds all that shows a fault would be seen."""

import fnmatch

import pytest
import test_chi_square
import test_enumeration
import test_faults
import test_negative_controls

SEES_FAULTS = [
  test_enumeration.test_a_flaw_is_seen,
  test_faults.test_a_fault_is_seen_where_the_rule_looks,
  test_faults.test_every_fault_is_seen_by_someone,
  test_negative_controls.test_a_mistake_is_seen,
  test_negative_controls.test_the_same_done_properly_is_exact,
  test_chi_square.test_shared_randomness_is_seen,
]


def mark_of(test, name: str):
  return next((mark for mark in getattr(test, "pytestmark", []) if mark.name == name), None)


@pytest.mark.parametrize("test", SEES_FAULTS, ids=lambda test: test.__name__)
def test_what_sees_a_fault_has_quick_cells(test):
  mark = mark_of(test, "full")
  assert mark is None or mark.kwargs["but"]
  assert mark_of(test, "slow") is None


def test_every_rule_is_proven_for_every_proposal():
  methods = test_enumeration.METHODS
  test = test_enumeration.test_the_emitted_distribution_is_the_targets
  assert mark_of(test, "slow") is None
  patterns = mark_of(test, "full").kwargs["but"]
  quick = {name for pattern in patterns for name in fnmatch.filter(methods, pattern)}

  def kinds(names):
    return {(methods[name][1].name, methods[name][0].proposal) for name in names}

  assert kinds(quick) == kinds(methods)

  def of_two_rounds(names):  # what a round leaves to the next
    return {methods[name][0].proposal for name in names if methods[name][2] == 2}

  assert of_two_rounds(quick) == of_two_rounds(methods)
