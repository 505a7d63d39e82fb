"""The figures of merit against cases worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from specjax.eval import metrics


def test_block_efficiency_is_a_ratio_of_totals():
  # 10 tokens in 4 passes and 2 in 2: not the mean of 2.5 and 1.
  assert metrics.block_efficiency(10 + 2, 4 + 2) == 2.0


def test_acceptance_of_a_chain_that_is_always_full():
  # Five rounds of depth 2 accept 0, 0, 1, 2, 2: depth 1 in 3 of 5, then depth 2 in 2 of 3.
  assert metrics.acceptance_by_depth([2, 1, 2], [0, 0, 5]) == pytest.approx([3 / 5, 2 / 3])
  assert metrics.tried_by_depth([2, 1, 2], [0, 0, 5]) == [5, 3]


def test_acceptance_leaves_out_rounds_without_a_draft():
  # Ten rounds, six of them with no draft; the other four accept 0, 1, 2, 2.
  assert metrics.acceptance_by_depth([7, 1, 2], [6, 0, 4]) == pytest.approx([3 / 4, 2 / 3])


def test_acceptance_of_a_depth_never_tried_is_none():
  assert metrics.acceptance_by_depth([4, 0, 0], [0, 0, 4]) == [0.0, None]
  assert metrics.acceptance_by_depth([9], [9]) == []


def test_acceptance_pools_prompts():
  rows = [[1, 0, 1], [1, 1, 1]], [[0, 0, 2], [0, 0, 3]]
  assert metrics.acceptance_by_depth(*rows) == metrics.acceptance_by_depth([2, 1, 2], [0, 0, 5])


def test_mbsu():
  # A draft of a tenth of the target's size, run 4 times a round, eats 40% of a pass.
  assert metrics.mbsu(2.8, 0.1, 4) == pytest.approx(2.0)
  assert metrics.mbsu(1.5, 0.0, 1) == 1.5


def test_speed_up_is_a_ratio_of_rates():
  # 100 tokens in 2 s against 90 tokens in 3 s: 50 over 30 tokens per second.
  assert metrics.tokens_per_second(100, 2.0) == 50.0
  assert metrics.speed_up(100, 2.0, 90, 3.0) == pytest.approx(5 / 3)


def test_interval_of_equal_units_has_no_width():
  low, high = metrics.bootstrap_interval(metrics.block_efficiency, [6] * 5, [2] * 5)
  assert low == high == 3.0


def test_interval_covers_and_repeats():
  rng = np.random.default_rng(1)
  passes = rng.integers(20, 60, 200)
  emitted = np.round(passes * rng.normal(2.5, 0.5, 200))
  low, high = metrics.bootstrap_interval(metrics.block_efficiency, emitted, passes)
  assert low < 2.5 < high
  # The spread of the ratio, 0.5 / sqrt(200), within a quarter.
  assert (high - low) / (2 * 1.96) == pytest.approx(0.5 / 200**0.5, rel=0.25)
  assert (low, high) == metrics.bootstrap_interval(metrics.block_efficiency, emitted, passes)


def test_interval_resamples_a_method_with_its_baseline():
  # Slow prompts are slow for both, so the ratio is the same in every draw.
  seconds = np.array([1.0, 9.0, 2.0, 30.0])
  tokens = np.array([10, 10, 10, 10])
  low, high = metrics.bootstrap_interval(metrics.speed_up, tokens, seconds, tokens, 2 * seconds)
  assert low == pytest.approx(2.0) and high == pytest.approx(2.0)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (8, 10), (100, 100), (37, 200)])
def test_wilson(k, n):
  want = stats.binomtest(k, n).proportion_ci(method="wilson")
  assert metrics.wilson_interval(k, n) == pytest.approx((want.low, want.high), abs=1e-6)


@pytest.mark.parametrize(
  ("text", "want"),
  [("", None), ("no", None), ("2 and 1,234.", "1234"), ("so -3.50 $", "-3.50"), ("#### 7", "7")],
)
def test_last_number(text, want):
  assert metrics.last_number(text) == want


def test_one_unit_has_no_interval():
  assert metrics.bootstrap_interval(metrics.block_efficiency, [5], [2]) is None


@pytest.mark.parametrize(
  ("ids", "reference", "index"),
  [
    ([1, 2, 3], [1, 2, 3], None),
    ([1, 9, 3], [1, 2, 3], 1),
    ([1, 2], [1, 2, 3], 2),
    ([1, 2, 3], [1, 2], 2),
    ([], [], None),
  ],
)
def test_first_divergence(ids, reference, index):
  assert metrics.first_divergence(ids, reference) == index


def test_ngrams_of_several_texts_are_counted_together():
  # 12, 21, 12, 21 and 21 again.
  assert metrics.ngrams([[1, 2, 1, 2, 1], [2, 1]], 2) == (2, 5)
  assert metrics.ngrams([[1, 2]], 3) == (0, 0)
