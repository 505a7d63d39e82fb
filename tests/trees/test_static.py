"""Static trees: their arrays, impossible ones, and the best of a size."""

import itertools

import numpy as np
import pytest

from specjax.testing import fixed_draft
from specjax.trees.static import best_first, expected_length, from_choices


def test_from_choices_orders_by_depth_then_path():
  tree = from_choices([[1], [0, 2], [0], [0, 0], [0, 2, 1]])
  assert tree.parent.tolist() == [0, 0, 0, 1, 1, 4]
  assert tree.depth.tolist() == [0, 1, 1, 2, 2, 3]
  assert tree.rank.tolist() == [0, 0, 1, 0, 2, 1]
  assert {x.dtype for x in tree} == {np.dtype(np.int32)}


def test_no_choices_are_the_root():
  assert [x.tolist() for x in from_choices([])] == [[0], [0], [0]]


@pytest.mark.parametrize(
  ("choices", "words"),
  [
    ([[0], []], r"`choices` must be paths of one or more ranks of at least 0, got \[\]\."),
    (
      [[0], [0, -1]],
      r"`choices` must be paths of one or more ranks of at least 0, got \[0, -1\]\.",
    ),
    ([[0], [1], [0]], r"the path \[0\] twice"),
    ([[0], [1, 0]], r"the path \[1, 0\] but not its parent \[1\]"),
  ],
)
def test_an_impossible_tree_is_an_error(choices, words):
  with pytest.raises(ValueError, match=words):
    from_choices(choices)


@pytest.mark.parametrize("tokens", [[1], [1, 2, 0]])
def test_a_fixed_draft_needs_a_token_per_path(tokens):
  with pytest.raises(ValueError, match="choices has 2 paths"):
    fixed_draft([[0], [1]], tokens)


def trees_of(nodes: int, depth: int, ranks: int):
  """Every tree of that many nodes, the root included."""
  paths = [p for d in range(1, depth + 1) for p in itertools.product(range(ranks), repeat=d)]
  for tree in itertools.combinations(paths, nodes - 1):
    if all(len(p) == 1 or p[:-1] in tree for p in tree):
      yield tree


@pytest.mark.parametrize("seed", range(4))
def test_best_first_equals_brute_force(seed):
  rates = np.random.default_rng(seed).dirichlet(np.ones(3), size=2)[:, :2]  # in no order of rank
  rates = rates if seed else np.array([[0.0, 0.5], [0.3, 0.0]])
  whole = best_first(rates, 7)
  for nodes in range(1, 8):
    chosen = best_first(rates, nodes)
    assert chosen == whole[: nodes - 1]
    from_choices(chosen)
    best = max(expected_length(tree, rates) for tree in trees_of(nodes, 2, 2))
    np.testing.assert_allclose(expected_length(chosen, rates), best)


def test_best_first_stops_at_the_whole_tree():
  assert len(best_first(np.full((2, 2), 0.5), 100)) == 6


@pytest.mark.parametrize(("shape", "nodes"), [((3,), 4), ((2, 3), 0), ((0, 3), 4), ((2, 0), 4)])
def test_best_first_needs_a_table(shape, nodes):
  with pytest.raises(
    ValueError, match=rf"`nodes` must be at least 1 .*, got {nodes} and the shape"
  ):
    best_first(np.ones(shape), nodes)
