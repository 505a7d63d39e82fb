"""In-context navigation against a loop over prompts."""

import dataclasses

import numpy as np
import pytest
from test_by_bytes import byte_level
from test_conversation import MODEL
from test_switching import after

import specjax
from specjax.search.navigation import answer

WORDS = ["<|end|>", "a", "b", "Ġ", "c", "d", ".", "e", "Ċ", "f", "g", "h"]
TALKER = dataclasses.replace(MODEL, tokenizer=byte_level(WORDS, []), stop=(0,))
AGAIN = "{prompt} h {found}"


def by_hand(prompt: str, n: int, each: int, new: int) -> list[str]:
  said: list[str] = []
  found: list[str] = []
  taken = [0]
  while len(said) < n:
    asked = f"{prompt} h {', '.join(found)}" if found else prompt
    ids = TALKER.encode(asked)
    best = [i for i in np.argsort(-after(TALKER, ids), kind="stable").tolist() if i not in taken]
    for token in best[: min(each, n - len(said))]:
      taken.append(token)
      text = [*ids, token]
      while len(text) < len(ids) + new and text[-1] != 0:
        text.append(int(after(TALKER, text).argmax()))
      said.append(TALKER.decode(text[len(ids) :], ids))
      if (words := answer(said[-1])) and words not in found:
        found.append(words)
  return said


@pytest.mark.slow
@pytest.mark.parametrize(("n", "each", "rounds"), [(5, 2, 3), (4, 4, 1)])
def test_the_samples_are_those_of_a_loop(n, each, rounds):
  decoder = specjax.Decoder(TALKER, batch=2)
  got, = specjax.search.navigated(decoder, ["ab a"], n, 4, each=each, again=AGAIN)  # fmt: skip
  assert got.said == by_hand("ab a", n, each, 4) and got.rounds == rounds
  assert len(set(got.answers)) == len(got.answers)
  assert set(got.answers) == {answer(x) for x in got.said} - {""}


@pytest.mark.parametrize(
  ("text", "want"),
  [
    (" Kenya.", "Kenya"), ("**Ivory Coast** (West", "Ivory Coast"), ("\n\nMali, Chad", "Mali"),
    ('"Peru"', "Peru"), (" ...", ""), ("", ""),
  ],
)  # fmt: skip
def test_an_answer_is_its_first_words(text, want):
  assert answer(text) == want


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    ({"n": 0}, "`n` must be between 1 and"),
    ({"n": 3, "each": 4}, "`each` must be between 1 and 3 .n is the most., got 4"),
    ({"max_new_tokens": 1}, "`max_new_tokens` must be between 2 and"),
    ({"again": "{prompt}"}, "`again` must be a text with {found}, got"),
    ({"prompts": "a"}, "`prompts` must be a list of texts, got 'a'"),
  ],
)
def test_what_is_not_accepted_is_refused(wrong, message):
  arguments = {"prompts": ["ab a"], "n": 5} | wrong
  with pytest.raises(ValueError, match=message):
    specjax.search.navigated(specjax.Decoder(TALKER), **arguments)
