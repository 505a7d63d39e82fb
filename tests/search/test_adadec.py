"""AdaDec against a loop over whole texts."""

import dataclasses

import jax
import numpy as np
import pytest
from test_conversation import MODEL
from test_switching import after

import specjax

PROMPTS = [[1, 2, 3, 4, 1], [7]]
NEW = 12
# Of smaller logits, so that it is unsure; and its texts may end.
UNSURE = dataclasses.replace(
  MODEL, params=jax.tree.map(lambda x: 0.5 * x, MODEL.params), stop=(5,), name="unsure"
)


def continued(text, ahead, stop):
  """The mean log-probability of the last token of a text and its greedy continuation."""
  total, count, text = after(UNSURE, text[:-1])[text[-1]], 1, list(text)
  while count <= ahead and text[-1] not in stop:
    log_p = after(UNSURE, text)
    text.append(int(log_p.argmax()))
    total, count = total + log_p[text[-1]], count + 1
  return total / count


def by_hand(prompt, new, threshold, candidates, ahead):
  text, looked = list(prompt), []
  while len(looked) < new and not (looked and text[-1] in UNSURE.stop):
    log_p = after(UNSURE, text)
    best = np.argsort(-log_p, kind="stable")[:candidates].tolist()
    looked.append(bool(-(np.exp(log_p) * log_p).sum() >= threshold))
    if looked[-1]:
      scores = [continued([*text, x], ahead, UNSURE.stop) for x in best]
      text.append(best[int(np.argmax(scores))])
    else:
      text.append(best[0])
  return text[len(prompt) :], looked


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "candidates", "ahead"), [(0.2, 3, 5), (0.0, 4, 2)])
def test_the_text_is_that_of_a_loop(threshold, candidates, ahead):
  got = specjax.search.adadec(UNSURE, PROMPTS, threshold, NEW, candidates=candidates, ahead=ahead)
  for prompt, one in zip(PROMPTS, got, strict=True):
    assert (one.tokens, one.looked) == by_hand(prompt, NEW, threshold, candidates, ahead)
  greedy = specjax.Decoder(UNSURE)(PROMPTS, NEW)
  assert any(a.tokens != b.tokens for a, b in zip(got, greedy, strict=True))


@pytest.mark.full
def test_a_sure_model_is_decoded_greedily():
  got = specjax.search.adadec(UNSURE, PROMPTS, 99.0, NEW)
  want = specjax.Decoder(UNSURE)(PROMPTS, NEW)
  assert [x.tokens for x in got] == [x.tokens for x in want]


@pytest.mark.parametrize(
  "wrong", [{"threshold": -1.0}, {"candidates": 0}, {"ahead": 0}, {"max_new_tokens": 0}]
)
def test_bad_numbers_are_refused(wrong):
  with pytest.raises(
    ValueError, match="`{}` must be .*, got {}".format(*next(iter(wrong.items())))
  ):
    specjax.search.adadec(MODEL, PROMPTS, **{"threshold": 1.0} | wrong)
