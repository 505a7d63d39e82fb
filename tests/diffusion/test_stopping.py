"""Where a text ends, on a canvas of which every case is worked out by hand."""

import jax.numpy as jnp
import pytest

from specjax.diffusion import stopping
from specjax.diffusion.base import Canvas, Prediction

END, MASK = 7, 9
# A prompt of one token, which is an end marker; six slots of which the fourth was given; two of
# padding. The window holds slots 1 to 4.
TOKENS = [END, MASK, MASK, 3, MASK, MASK, MASK, MASK, MASK]
WINDOW = [1, 2, 3, 4]
RULES = {
  "whole": stopping.whole(),
  "after_end": stopping.after_end(),
  "prediction": stopping.end_of_text_prediction(),
  "sure": stopping.sure_end(0.8),
}


def ended(rule: str, guesses: list[int], confidence: list[float], commit: list[int], full: bool):
  """(tokens, masked, end) after a round in which slots of the window were committed."""
  tokens = list(TOKENS)
  for slot in commit:
    tokens[slot] = guesses[slot - 1]
  tokens_ = jnp.array([tokens])
  canvas = Canvas(tokens_, tokens_ == MASK, jnp.array([7]))
  window = tokens_[:, 1:5]
  chosen = jnp.array([[slot in commit for slot in WINDOW]])
  empty = jnp.zeros((1, 4))
  prediction = Prediction(
    jnp.array([guesses]), jnp.array([confidence]), empty, empty, empty[..., None],
    jnp.array([WINDOW]), (window == MASK) | chosen, chosen, chosen, jnp.zeros(1), empty,
    jnp.zeros((1, 4), bool), tokens_, jnp.array([guesses]),
  )  # fmt: skip
  got = RULES[rule].end(jnp.array([END]), canvas, prediction, chosen, jnp.array([full]))
  return got.tokens[0].tolist(), jnp.flatnonzero(got.masked[0]).tolist(), int(got.end[0])


SURE, UNSURE = [0.6, 0.9, 0.9, 0.7], [0.6, 0.5, 0.9, 0.7]
UNFILLED = [1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
  ("rule", "guesses", "confidence", "commit", "full", "masked", "end"),
  [
    ("whole", [5, END, 3, END], SURE, [2], True, [1, 4, 5, 6, 7, 8], 7),
    ("after_end", [5, END, 3, END], SURE, [2], False, [1, 4, 5, 6, 7, 8], 7),
    ("after_end", [5, END, 3, END], SURE, [2], True, [1, 4, 5, 6, 7, 8], 3),
    ("after_end", [5, 5, 3, 5], SURE, [2], True, [1, 4, 5, 6, 7, 8], 7),  # not the prompt's
    ("prediction", [5, END, 3, END], UNSURE, [1], False, [2, 4, 5, 6, 7, 8], 5),  # the likeliest
    ("prediction", [5, END, 3, END], UNSURE, [2], False, [1, 4, 5, 6, 7, 8], 3),  # committed
    ("prediction", [5, 5, 3, 5], SURE, [1], False, [2, 4, 5, 6, 7, 8], 7),
    ("sure", [5, END, 3, END], UNSURE, [1], False, [2, 4, 5, 6, 7, 8], 7),  # waits
    ("sure", [5, END, 3, END], SURE, [1], False, [2, 7, 8], 7),
    ("sure", [5, END, 3, END], UNSURE, [2], False, [1, 7, 8], 7),
    ("sure", [END, END, 3, 5], SURE, [], False, [1, 2, 7, 8], 7),  # the first sure one
    ("sure", [5, 5, END, 5], SURE, [], False, UNFILLED, 7),  # what was given is no guess
  ],
)  # fmt: skip
def test_a_text_ends(rule, guesses, confidence, commit, full, masked, end):
  tokens, left, stop = ended(rule, guesses, confidence, commit, full)
  assert (left, stop) == (masked, end)
  assert tokens[3] == 3 and tokens[0] == END  # what was given stays
  filled = set(UNFILLED) - set(left) - set(commit)
  assert all(tokens[slot] == END for slot in filled)
