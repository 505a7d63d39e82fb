"""Sequoia's program against all trees there are, and against best-first search."""

import functools
import itertools

import numpy as np
import pytest

from specjax.trees.sequoia import sequoia
from specjax.trees.static import best_first, expected_length, from_choices

RNG = np.random.default_rng(0)
FALLING = [
  (np.sort(RNG.dirichlet(np.full(R + 1, 0.7))[:R])[::-1], nodes, depth)
  for R, nodes, depth in itertools.product((2, 3, 5), (4, 11), (2, 5))
]
ANY = [
  (RNG.dirichlet(np.full(R + 1, 0.5))[:R], nodes, depth)
  for R, nodes, depth in itertools.product((2, 3), (4, 6, 7), (2, 3))
]


@functools.cache
def trees(nodes: int, depth: int, ranks: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
  """All trees of `nodes` nodes in which the children of a node have the ranks 0, 1, .. ."""
  if nodes == 1:
    return ((),)
  if depth == 0:
    return ()
  found = []
  for children in range(1, ranks + 1):
    for sizes in itertools.product(range(1, nodes), repeat=children):
      if sum(sizes) == nodes - 1:
        for parts in itertools.product(*(trees(size, depth - 1, ranks) for size in sizes)):
          found.append(
            tuple(
              path
              for rank, part in enumerate(parts)
              for path in ((rank,), *((rank, *below) for below in part))
            )
          )
  return tuple(found)


def length(choices, rates, depth: int) -> float:
  return expected_length(choices, np.tile(rates, (depth, 1)))


def drawable(choices) -> list[list[int]]:
  """The tree with the elder siblings that it lacks."""
  paths = {(*p[:-1], r) for p in map(tuple, choices) for r in range(p[-1] + 1)}
  return [list(path) for path in paths]


@pytest.mark.parametrize(("rates", "nodes", "depth"), ANY)
def test_it_is_the_best_of_all_trees(rates, nodes, depth):
  best = max(length(tree, rates, depth) for tree in trees(nodes, depth, len(rates)))
  found = sequoia(rates, nodes, depth)
  assert len(found) == nodes - 1 and max(map(len, found)) <= depth
  assert len(drawable(found)) == len(found)
  assert np.isclose(length(found, rates, depth), best, rtol=1e-12)


@pytest.mark.parametrize(("rates", "nodes", "depth"), FALLING)
def test_falling_rates_make_it_the_best_first_tree(rates, nodes, depth):
  found, first = sequoia(rates, nodes, depth), best_first(np.tile(rates, (depth, 1)), nodes)
  assert len(found) == len(first)
  assert np.isclose(length(found, rates, depth), length(first, rates, depth), rtol=1e-12)


def test_rates_that_rise_need_the_program():
  """Best-first trees lack elder siblings, and cost more nodes once they have them."""
  ahead = []
  for rates, nodes, depth in ANY:
    table, best = np.tile(rates, (depth, 1)), 0.0
    for size in range(1, nodes + 1):
      whole = drawable(best_first(table, size))
      if len(whole) < nodes:
        best = max(best, length(whole, rates, depth))
    ahead.append(length(sequoia(rates, nodes, depth), rates, depth) - best)
  assert min(ahead) > -1e-12 and max(ahead) > 1e-3


def test_by_hand():
  """The second child is the good one: it is worth its elder sibling."""
  assert sequoia([0.1, 0.8], 5, 3) == [[0], [1], [1, 0], [1, 1]]
  assert sequoia([0.9], 9, 3) == [[0], [0, 0], [0, 0, 0]]  # no room for nine
  assert sequoia([0.5, 0.5], 1, 2) == []
  from_choices(sequoia(np.full(4, 0.2), 30, 4))


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (
      ([], 4, 2),
      "`acceptance` must be one or more rates of at least 0 whose sum is at most 1, got "
      r"\[\]\.",
    ),
    (
      ([0.9, 0.3], 4, 2),
      "`acceptance` must be one or more rates of at least 0 whose sum is at most 1, got "
      r"\[0\.9, 0\.3\]\.",
    ),
    (
      ([-0.1], 4, 2),
      "`acceptance` must be one or more rates of at least 0 whose sum is at most 1, got "
      r"\[-0\.1\]\.",
    ),
    (([0.5], 0, 2), r"`nodes` and `depth` must be at least 1, got 0 and 2\."),
    (([0.5], 2, 0), r"`nodes` and `depth` must be at least 1, got 2 and 0\."),
  ],
)
def test_impossible_numbers_are_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    sequoia(*arguments)
