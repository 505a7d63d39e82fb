"""Several samples of a prompt: whose noise they have, and which is taken."""

import dataclasses

import numpy as np
import pytest
from test_conversation import MODEL

import specjax
from specjax.decoding.batching import Result
from specjax.search.best_of import SELECT, overlap

PROMPTS, N, END = [[1, 2, 3, 1, 2], [5, 6]], 3, 2


@pytest.fixture(scope="module")
def decoders():
  return {
    drafter: specjax.Decoder(
      MODEL, drafter, "target_only", temperature=1.2, batch=4, seed=3, stop=[END]
    )
    for drafter in ("none", "prompt_lookup-3")
  }


@pytest.fixture(scope="module")
def alone(decoders):
  """The samples of both prompts, each a request of its own."""
  every = decoders["none"]([p for p in PROMPTS for _ in range(N)], 12)
  return [every[:N], every[N:]]


@pytest.mark.parametrize("select", ["likelihood", "mbr"])
def test_the_samples_are_requests_and_the_best_is_taken(decoders, alone, select):
  for got, want in zip(
    specjax.search.best_of(decoders["none"], PROMPTS, N, 12, select=select), alone, strict=True
  ):
    assert [r.tokens for r in got.samples] == [r.tokens for r in want]
    if select == "likelihood":
      np.testing.assert_allclose(got.scores, [np.mean(r.log_probs) for r in want], rtol=1e-5)
    assert got.result is got.samples[int(np.argmax(got.scores))]


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup-3"])
def test_a_hedge_is_the_greedy_text_before_the_samples(decoders, alone, drafter):
  greedy = specjax.Decoder(MODEL, stop=[END])(PROMPTS, 12)
  # Two samples of each prompt: requests 0 and 1, and 2 and 3.
  every = decoders["none"]([p for p in PROMPTS for _ in range(2)], 12)
  got = specjax.search.best_of(decoders[drafter], PROMPTS, 3, 12, select="vote", hedged=True)
  for i, (best, first) in enumerate(zip(got, greedy, strict=True)):
    want = [first, *every[2 * i : 2 * i + 2]]
    assert [r.tokens for r in best.samples] == [r.tokens for r in want]
  assert decoders[drafter].sampling.temperature == 1.2


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup-3"])
def test_the_first_to_finish_is_the_shortest(decoders, alone, drafter):
  got = specjax.search.best_of(decoders[drafter], PROMPTS, N, 12, select="first_finish")
  assert len({len(r.tokens) for r in alone[0]}) > 1  # or nothing would be tested
  for best, samples in zip(got, alone, strict=True):
    lengths = [len(r.tokens) for r in samples]
    assert best.chosen == int(np.argmin(lengths))
    assert best.result.tokens == samples[best.chosen].tokens
    for cut, whole in zip(best.samples, samples, strict=True):
      assert cut.tokens == whole.tokens[: len(cut.tokens)] and len(cut.tokens) >= min(lengths)


@pytest.mark.parametrize(
  ("a", "b", "want"),
  [
    ("abc", "abc", 1.0), ("", "", 1.0), ("ab", "", 0.0), ("ab", "cd", 0.0),
    ("abc", "abd", (2 / 3 + 1 / 2 + 0) / 3), ("aa", "a", (2 / 3 + 0) / 2), ([1, 2], [1, 2, 1, 2],
     (4 / 6 + 2 / 4 + 0 + 0) / 4),
  ],
)  # fmt: skip
def test_overlap(a, b, want):
  np.testing.assert_allclose(overlap(a, b), want)
  np.testing.assert_allclose(overlap(b, a), want)


def test_scores():
  samples = [
    Result([1], text, list(range(n)), [-x] * n, 1, 0.0)
    for text, n, x in (("The sum is 12.", 4, 0.5), ("It is 7", 2, 0.1), ("The sum is 12!", 3, 0.6))
  ]
  scores = {name: select(samples) for name, select in SELECT.items()}
  np.testing.assert_allclose(scores["likelihood"], [-0.5, -0.1, -0.6])
  assert scores["first_finish"] == [-4, -2, -3]
  a, b, c = scores["mbr"]
  assert a > b < c
  without = [dataclasses.replace(r, text="") for r in samples]
  np.testing.assert_allclose(
    SELECT["mbr"](without)[0], (overlap(range(4), range(2)) + overlap(range(4), range(3))) / 2
  )


@pytest.mark.parametrize(
  ("texts", "want"),
  [
    (["It is 4.", "5", "so 1,004", "4", "1004"], [0.4, 0.2, 0.4, 0.4, 0.4]),
    (["yes", "no", " yes\n"], [2 / 3, 1 / 3, 2 / 3]),
    (["", "", ""], [1 / 3, 2 / 3, 2 / 3]),
  ],
)
def test_votes(texts, want):
  ids = [[1], [2], [2], [1], [2]]
  samples = [Result([1], text, ids[i], [-1.0], 1, 0.0) for i, text in enumerate(texts)]
  np.testing.assert_allclose(SELECT["vote"](samples), want)


def test_refused(decoders):
  decoder = decoders["none"]
  for wrong in ({"n": 0}, {"select": "best"}, {"n": 5, "select": "first_finish"}, {"first": -1},
                {"hedged": True, "select": "first_finish"}, {"hedged": 1}):  # fmt: skip
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be .*, got "):
      specjax.search.best_of(decoder, PROMPTS, **wrong)
  with pytest.raises(ValueError, match="`temperature` must be above 0 for several samples, got 0"):
    specjax.search.best_of(specjax.Decoder(MODEL), PROMPTS)
