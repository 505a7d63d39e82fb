"""Best paths against all paths, and the bigram table that scores them against a dict of counts."""

import collections
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data.ngram import bigram
from specjax.trees.k_best import p_best

B = 3
RUN = jax.jit(p_best, static_argnames="paths")


def all_paths(scores, transitions):
  """[(score, ranks)] of one row, best first, equal ones in the order of their ranks."""
  D, K = scores.shape
  found = []
  for ranks in itertools.product(range(K), repeat=D):
    total = sum(float(scores[d, r]) for d, r in enumerate(ranks))
    total += sum(float(transitions[d, ranks[d], ranks[d + 1]]) for d in range(D - 1))
    found.append((total, ranks))
  return sorted(found, key=lambda x: -x[0])


@pytest.mark.parametrize("whole", [False, True], ids=["real", "many ties"])
@pytest.mark.parametrize(
  ("depth", "guesses", "paths"),
  [(1, 5, 3), (2, 3, 9), (3, 4, 7), (4, 3, 16), (3, 2, 8), (4, 1, 1), (2, 4, 1)],
)
def test_the_best_of_all_paths(depth, guesses, paths, whole):
  rng = np.random.default_rng(depth * 10 + guesses)
  shapes = (B, depth, guesses), (B, depth - 1, guesses, guesses)
  # Small whole numbers add without rounding and tie often.
  scores, transitions = (
    (rng.integers(-2, 2, s) if whole else rng.normal(size=s)).astype(np.float32) for s in shapes
  )
  ranks, score = RUN(scores, transitions, paths=paths)
  assert ranks.dtype == jnp.int32 and ranks.shape == (B, paths, depth)
  for b in range(B):
    want = all_paths(scores[b], transitions[b])[:paths]
    assert [tuple(path) for path in ranks[b].tolist()] == [path for _, path in want]
    np.testing.assert_allclose(score[b], [total for total, _ in want], atol=1e-5)


@pytest.mark.parametrize("paths", [0, 10])
def test_more_paths_than_there_are_is_an_error(paths):
  with pytest.raises(
    ValueError, match=f"`paths` must be between 1 and 9, for 3 guesses at 2 depths, got {paths}"
  ):
    p_best(jnp.zeros((1, 2, 3)), jnp.zeros((1, 1, 3, 3)), paths)


V = 9
TEXTS = [[0, 1, 2, 1, 2, 8, 1], [], [4], np.array([2, 1, 1, 4, 4, 0, 7, 2]), [1, 2, 5, 1]]


@pytest.mark.parametrize("vocabulary", [None, [1, 2, 4, 7], [7, 1, 4]])
@pytest.mark.parametrize("prior", [1.0, 0.3])
def test_a_table_of_counts(vocabulary, prior):
  kept = list(range(V)) if vocabulary is None else vocabulary
  single, pair, after = (collections.Counter() for _ in range(3))
  for text in TEXTS:
    ids = [int(x) for x in text]
    single.update(x for x in ids if x in kept)
    for a, b in itertools.pairwise(ids):
      if a in kept and b in kept:
        pair[a, b] += 1
        after[a] += 1
  table = bigram(TEXTS, V, None if vocabulary is None else np.array(vocabulary), prior)
  assert table.dtype == np.float32 and table.shape == (len(kept), len(kept))
  total = sum(single.values()) + len(kept)
  for i, a in enumerate(kept):
    for j, b in enumerate(kept):
      p = (pair[a, b] + prior * (single[b] + 1) / total) / (after[a] + prior)
      assert table[i, j] == pytest.approx(math.log(p), abs=1e-5)
  np.testing.assert_allclose(np.exp(table).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
  ("texts", "prior", "words"),
  [
    ([[1, V]], 1.0, "outside 0 to 8"), ([[1, -1]], 1.0, "outside 0 to 8"), (TEXTS, 0.0,
     r"`prior` must be above 0 \(at 0 unseen pairs would be impossible\), got 0\.0\."),
  ],
)  # fmt: skip
def test_what_cannot_be_counted_is_an_error(texts, prior, words):
  with pytest.raises(ValueError, match=words):
    bigram(texts, V, prior=prior)
