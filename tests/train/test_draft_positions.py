"""Where heads draft from while they learn, against a plain loop over the documents."""

from collections import Counter

import numpy as np
import pytest

from specjax.base import Features
from specjax.data.packing import PackedRows, pack
from specjax.train.recipe.draft_positions import PositionSource, candidates

T, POINTS = 20, 7


def random_rows(seed: int, length: int = T) -> PackedRows:
  """Texts of 1 to more than T tokens; the last row trains nothing."""
  rng = np.random.default_rng(seed)
  documents = [
    (rng.integers(1, 50, n).tolist(), (rng.random(n) < 0.6).tolist())
    for n in rng.integers(1, length + 5, 9)
  ]
  rows = pack([*documents, (list(range(1, length + 1)), [False] * length)], length)
  assert len({len(np.flatnonzero(m)) for m in rows.mask}) > 1 and not rows.mask.any(1).all()
  return rows


def texts(rows: PackedRows):
  """(row, start, stop) of every document."""
  for r, segment in enumerate(rows.segment):
    for s in range(segment.max() + 1):
      where = np.flatnonzero(segment == s)
      yield r, where[0], where[-1] + 1


def wanted(rows: PackedRows, depth: int) -> dict[tuple[int, int, int], int]:
  """(row, position, d): the trained token of the same text at position + d + 1."""
  return {
    (r, t, d): int(rows.tokens[r, t + d + 1])
    for r, start, stop in texts(rows)
    for t in range(start, stop)
    for d in range(1, depth + 1)
    if t + d + 1 < stop and rows.mask[r, t + d + 1]
  }


@pytest.mark.parametrize(("seed", "depth"), [(0, 1), (1, 2), (2, 4), (3, T + 3)])
def test_what_could_be_said_is_that_of_a_plain_loop(seed, depth):
  rows = random_rows(seed)
  labels, weight = candidates(rows, depth)
  assert labels.shape == weight.shape == (*rows.tokens.shape, depth)
  want = wanted(rows, depth)
  counted = {(r, t, d + 1) for r, t, d in zip(*np.nonzero(weight), strict=True)}
  assert counted == want.keys() and 0 < len(counted) < weight.size
  for (r, t, d), label in want.items():
    assert labels[r, t, d - 1] == label


def source(rows: PackedRows, depth: int = 3, seed: int = 0, points: int = POINTS) -> PositionSource:
  """With states that tell from where they are."""
  shape = (*rows.tokens.shape, 2)
  hidden = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
  return PositionSource(rows, Features(hidden, (-hidden,)), depth, points, seed)


def check(batch, rows: PackedRows, chosen, depth: int = 3) -> list[tuple[int, int]]:
  """That a batch is rows `chosen` with right labels; its (row, position) that count."""
  e, want, counted = batch.examples, wanted(rows, depth), []
  np.testing.assert_array_equal(e.tokens, rows.tokens[chosen])
  np.testing.assert_array_equal(e.position, rows.position[chosen])
  np.testing.assert_array_equal(e.segment, rows.segment[chosen])
  assert e.at.dtype == np.int32 and (e.at >= 0).all() and (e.at < T).all()
  width = 2
  for b, r in enumerate(chosen):
    first = r * T * width
    np.testing.assert_array_equal(e.features.hidden[b].ravel(), first + np.arange(T * width))
    np.testing.assert_array_equal(e.features.hidden_layers[0][b], -e.features.hidden[b])
    for m, t in enumerate(e.at[b]):
      if batch.weight[b, m].any():
        counted.append((int(r), int(t)))
        for d in range(1, depth + 1):
          assert batch.weight[b, m, d - 1] == ((r, t, d) in want)
          assert not batch.weight[b, m, d - 1] or batch.labels[b, m, d - 1] == want[r, t, d]
  return counted


def useful(rows: PackedRows) -> set[tuple[int, int]]:
  """Positions from which decoding could draft: the first token they guess is trained."""
  return {(r, t) for r, t, d in wanted(rows, 1)}


def test_samples_are_distinct_useful_points_and_fillers_do_not_count():
  rows = random_rows(0)
  points, chosen = source(rows), np.arange(len(rows.tokens))[::-1]
  there = Counter(r for r, _ in useful(rows))
  seen = set()
  for step in range(12):
    counted = check(points.sample(chosen, step), rows, chosen)
    assert len(set(counted)) == len(counted) and set(counted) <= useful(rows)
    assert Counter(r for r, _ in counted) == {r: min(POINTS, n) for r, n in there.items()}
    seen.update(counted)
  assert min(there.values()) < POINTS < max(there.values())  # rows with fewer, and with more
  assert len(seen) > len(counted)


def test_a_sample_is_a_function_of_the_step():
  rows, chosen = random_rows(0), np.array([2, 0, 2])
  one, again, other = source(rows), source(rows), source(rows, seed=1)
  first = {step: one.sample(chosen, step) for step in (0, 1, 2)}
  for step in (2, 0, 1):  # in another order, and by another object
    for batch in (again.sample(chosen, step), one.sample(chosen, step)):
      np.testing.assert_array_equal(batch.examples.at, first[step].examples.at)
      np.testing.assert_array_equal(batch.weight, first[step].weight)
  assert not np.array_equal(first[0].examples.at, first[1].examples.at)
  assert not np.array_equal(first[0].examples.at, other.sample(chosen, 0).examples.at)


@pytest.mark.parametrize(("points", "batch"), [(1, 1), (POINTS, 4), (3 * T, 100)])
def test_every_covers_each_useful_point_once(points, batch):
  rows, counted = random_rows(1), Counter()
  for part in source(rows, points=points).every(batch):
    assert part.examples.at.shape == (batch, points)  # one shape, one compilation
    which = [int(hidden[0, 0]) // (2 * T) for hidden in part.examples.features.hidden]
    counted.update(check(part, rows, which))
  assert counted == Counter(useful(rows))
