"""A refilled batch gives each request what a decoder of its own gives."""

import pytest
from test_conversation import METHODS, MODEL, OF_BATCH

from specjax import Decoder
from specjax.serving.refill import refilled
from specjax.serving.rows import DecodeRows

# The long one is padded to another length: short ones are busy when it comes.
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4], [5, 6, 8] * 30, [7, 8, 9], [2, 2, 5], [3] * 9]
BUDGETS = [12, 3, 5, 1, 9, 14]
SAME = ("tokens", "passes", "rounds", "text", "method", "verifier", "exactness", "prompt")


@pytest.mark.slow
@pytest.mark.full(but=["none-greedy"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", METHODS)
def test_requests_are_decoded_as_alone(name, temperature):
  drafter, options = METHODS[name]
  options = options | {"temperature": temperature, "seed": 3}
  both = Decoder(MODEL, drafter(), **options | {"batch": 2})
  together = dict(refilled(both, PROMPTS, BUDGETS, rounds=3))
  alone = Decoder(MODEL, drafter(), **options | {"batch": 1})
  for i, (prompt, budget) in enumerate(zip(PROMPTS, BUDGETS, strict=True)):
    (expected,) = alone([prompt], budget, first=i)
    for field in (x for x in SAME if name not in OF_BATCH or x not in ("passes", "rounds")):
      assert getattr(together[i], field) == getattr(expected, field), (i, field)
    assert together[i].log_probs == pytest.approx(expected.log_probs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("cache, calls", [("dense", 10), ("int8", 12)])
def test_a_busy_row_rides_on_in_longer_caches(cache, calls, monkeypatch):
  counted, advance = [], DecodeRows.advance
  monkeypatch.setattr(DecodeRows, "advance", lambda rows, n: counted.append(n) or advance(rows, n))
  found = dict(refilled(Decoder(MODEL, batch=2, cache=cache), [[4], [5] * 90], [30, 4], rounds=3))
  assert [found[i].emitted for i in (0, 1)] == [30, 4]
  assert len(counted) == calls  # those of the first alone, or two more for the second after it


def test_a_request_has_its_own_noise():
  decoder = Decoder(MODEL, temperature=1.0, batch=2)
  (alone,) = Decoder(MODEL, temperature=1.0)([PROMPTS[0]], 12, first=7)
  found = dict(refilled(decoder, [PROMPTS[0]] * 3, 12, numbers=[1, 7, 7]))
  assert found[1].tokens == found[2].tokens == alone.tokens != found[0].tokens


@pytest.mark.parametrize("wrong, message", [
  ({"rounds": 0}, r"`rounds` must be between 1 and 2147483647, got 0\."),
  ({"numbers": [1]}, r"`len\(numbers\)` must be 6, the number of prompts, got 1\."),
  ({"max_new_tokens": [1, 2]},
   r"`len\(max_new_tokens\)` must be 6, the number of prompts, got 2\."),
])  # fmt: skip
def test_bad_requests_are_refused(wrong, message):
  with pytest.raises(ValueError, match=message):
    refilled(Decoder(MODEL), PROMPTS, **{"max_new_tokens": 8} | wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["history-4", "token_recycling-4,seeded=0,kept=1"])
def test_what_one_request_taught_helps_the_next(name):
  found = dict(refilled(Decoder(MODEL, name), [[5, 6, 7, 5, 1, 2]] * 2, 20))
  assert found[0].tokens == found[1].tokens
  assert found[1].passes < found[0].passes
