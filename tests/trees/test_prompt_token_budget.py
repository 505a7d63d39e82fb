"""Guesses per node: the chain of rounds against a simulation, and who loses theirs first."""

import numpy as np
import pytest

from specjax.trees.by_guesses import ByGuesses
from specjax.trees.prompt_token_budget import (
  accepted_last,
  allocate,
  allocate_trees,
  expected_length,
)
from specjax.trees.static import best_first

RATES = np.array([[0.6, 0.2, 0.1], [0.5, 0.2, 0.0], [0.4, 0.1, 0.1]])
CHOICES = best_first(RATES, 9)


def simulated(trees, rates, counts, rounds: int) -> float:
  """Accepted tokens per round of a loop in which ranks are right at random.

  After m guesses it drafts the first m levels of trees[m], whose nodes have counts[m] guesses.
  """
  rng = np.random.default_rng(7)
  paths = [[(), *sorted(map(tuple, tree), key=lambda c: (len(c), c))] for tree in trees]
  known = total = 0
  for _ in range(rounds):
    path: tuple[int, ...] = ()
    while len(path) < known:
      right = int((rng.random() > np.cumsum(rates[len(path)])).sum())
      if (*path, right) not in paths[known]:
        break
      path = (*path, right)
    total += len(path)
    known = counts[known][paths[known].index(path)]
  return total / rounds


@pytest.mark.parametrize(
  "counts", [(3,) * 9, (1, *[0] * 8), (1, 3, 0, 2, 1, 0, 3, 0, 1)], ids=["all", "root", "some"]
)
def test_expected_length_is_that_of_a_simulation(counts):
  got = expected_length(CHOICES, RATES, counts)
  assert abs(got - simulated([CHOICES] * 4, RATES, [counts] * 4, 10_000)) < 0.05


@pytest.mark.parametrize(
  ("choices", "counts", "want"),
  [
    ([[0]], (1, 1), 0.6),  # always a draft
    ([[0]], (1, 0), 0.6 / 1.6),  # after an accepted draft comes a round without
    ([[0], [1]], (1, 1, 0), 0.8 / 1.2),
    ([[0], [0, 0]], (2, 2, 2), 0.6 + 0.3),
    ([[0], [0, 0]], (1, 1, 1), 0.6),
    ([], (0,), 0.0),
  ],
)
def test_expected_length_by_hand(choices, counts, want):
  assert expected_length(choices, RATES, counts) == pytest.approx(want, abs=1e-9)


def test_certain_guesses_settle_where_the_first_round_leads():
  # The best guess is always right: rounds of one draft for ever, or of none.
  rates = np.array([[1.0], [1.0]])
  assert expected_length([[0], [0, 0]], rates, (1, 1, 2)) == pytest.approx(1)
  assert expected_length([[0], [0, 0]], rates, (2, 1, 0)) == pytest.approx(1)
  assert accepted_last([[0], [0, 0]], rates).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_the_least_missed_guesses_go_first():
  counts = [3] * 9
  assert allocate(CHOICES, RATES, 27) == allocate(CHOICES, RATES, 99) == tuple(counts)
  for budget in range(26, 0, -1):
    trials = []
    for v in range(9):
      trial = [n - (u == v) for u, n in enumerate(counts)]
      if min(trial) >= 0 and trial[0] >= 1:
        trials.append((round(expected_length(CHOICES, RATES, trial), 10), v, trial))
    got = allocate(CHOICES, RATES, budget)
    assert sum(got) == budget
    assert expected_length(CHOICES, RATES, got) == pytest.approx(max(trials)[0], abs=1e-9)
    counts = list(got)
  assert counts == [1, *[0] * 8]


@pytest.mark.parametrize(
  ("rates", "budget", "words"),
  [
    (RATES, 0, "the root needs one guess"),
    (RATES[:2], 9, "the tree has 3 levels"),
    (RATES[:, :1], 9, "the tree has 3 levels and . ranks"),
    (RATES + 0.5, 9, "sum to 1 at most"),
    (RATES - 0.15, 9, "0 or more"),
  ],
)
def test_an_impossible_allocation_is_refused(rates, budget, words):
  with pytest.raises(ValueError, match=words):
    allocate(CHOICES, rates, budget)


def test_among_equals_the_last_node_loses_its_guess():
  assert allocate([[0], [1]], np.array([[0.3, 0.3]]), 2) == (1, 1, 0)


def some_rates(seed: int) -> np.ndarray:
  """Falling by rank and by depth, as those of heads."""
  rng = np.random.default_rng(seed)
  ranks = -np.sort(-rng.dirichlet(np.full(6, 0.4), 3), axis=1)
  return ranks * np.cumprod(rng.uniform(0.6, 1.0, (3, 1)), 0)


@pytest.mark.parametrize(("nodes", "budget"), [(6, 8), (9, 14), (12, 24), (12, 36)])
def test_trees_of_their_own_are_no_shorter_and_as_long_as_a_simulation(nodes, budget):
  gains = []
  for seed in range(8):
    rates = some_rates(seed)
    tree, counts = allocate_trees(rates, nodes, budget)
    one = best_first(rates, nodes)
    assert [*map(set, tree.trees)] == [
      set(map(tuple, best_first(rates[:m], nodes))) if m else set() for m in range(tree.depth + 1)
    ]
    assert {tuple(sorted(row)) for row in counts} == {tuple(sorted(counts[0]))}
    assert sum(counts[0]) == min(budget, tree.depth * nodes) and counts[0][0] == max(counts[0])
    got = expected_length(tree, rates, counts)
    gains.append(got / expected_length(one, rates, allocate(one, rates, budget)))
    if seed == 0:
      assert abs(got - simulated(tree.trees, rates, counts, 10_000)) < 0.05
  assert min(gains) > 0.98 and (budget == 36 or np.mean(gains) > 1), gains


def test_one_tree_cut_into_its_levels_is_no_other_than_before():
  counts = (2, 3, 0, 2, 1, 0, 3, 0, 1)
  levels = ByGuesses([[p for p in CHOICES if len(p) <= m] for m in range(4)])
  got = expected_length(levels, RATES, (counts,) * 4)
  assert got == pytest.approx(expected_length(CHOICES, RATES, counts), abs=1e-9)


@pytest.mark.parametrize("trees", [[], [[[0]]], [[], [[0], [0, 0]]]])
def test_trees_deeper_than_their_guesses_are_refused(trees):
  with pytest.raises(ValueError, match=r"`trees` must be at most 0, 1, 2, \.\. deep in turn, got"):
    ByGuesses(trees)
