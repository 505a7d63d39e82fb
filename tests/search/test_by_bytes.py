"""The law of the next byte against a sum over all tokens that say a text."""

import dataclasses

import jax
import numpy as np
import pytest
import tokenizers
from test_conversation import CONFIG, MODEL, V
from test_switching import after

import specjax
from specjax.data.tokenizer import Tokenizer
from specjax.search.by_bytes import HOLES, cut, vocabulary
from specjax.search.covers import END, Covers, Vocabulary

END_OF_TEXT = "<|end|>"


def byte_level(words: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
  """A tokenizer whose ids are those of `words`; what is in <| |> is no text."""
  inner = tokenizers.Tokenizer(
    tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges)
  )
  inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  inner.decoder = tokenizers.decoders.ByteLevel()
  inner.add_special_tokens([word for word in words if word.startswith("<|")])
  return Tokenizer(inner)


WORDS = [END_OF_TEXT, "a", "b", "Ġ", "ab", "Ġa", "ba", "aba", "Ġab", *HOLES[0]]
MERGES = [("a", "b"), ("Ġ", "a"), ("b", "a"), ("ab", "a"), ("Ġa", "b")]
# Of smaller logits, which float32 rounds less.
ONE = dataclasses.replace(
  MODEL,
  tokenizer=byte_level(WORDS, MERGES),
  params=jax.tree.map(lambda x: 0.5 * x, MODEL.params),
  stop=(0,),
)
OTHER = dataclasses.replace(
  MODEL,
  tokenizer=byte_level(
    ["a", "bb", "Ġ", "b", "Ġb", "<|bos|>", END_OF_TEXT], [("b", "b"), ("Ġ", "b")]
  ),
  params=jax.tree.map(lambda x: -0.5 * x, MODEL.params),
  start=(5,),
  stop=(6,),
)


def by_hand(model, ids: list[int], said: bytes) -> tuple[float, np.ndarray]:
  """(the probability of a text after ids, the law f64[257] of its next byte)."""
  spoken = [b"" if i in model.stop else x for i, x in enumerate(model.tokenizer.spoken_bytes(V))]

  def of(text: bytes, read: tuple[int, ...]) -> float:
    """The probability of all tokens that say `text`, and maybe more, after those that are read."""
    if not text:
      return 1.0
    p = np.exp(after(model, [*ids, *read]))
    total = 0.0
    for i, word in enumerate(spoken):
      if word and (text.startswith(word) or word.startswith(text)):
        total += p[i] * of(text[len(word) :], (*read, i))
    return total

  def ends(text: bytes, read: tuple[int, ...]) -> float:
    """The probability of all tokens that say `text` and no more, and then of an end."""
    p = np.exp(after(model, [*ids, *read]))
    if not text:
      return sum(p[i] for i, word in enumerate(spoken) if not word)
    return sum(
      p[i] * ends(text[len(word) :], (*read, i))
      for i, word in enumerate(spoken) if word and text.startswith(word)
    )  # fmt: skip

  law = np.zeros(END + 1)
  for byte in b"ab ":
    law[byte] = of(said + bytes([byte]), ())
  law[END] = ends(said, ())
  return of(said, ()), law / law.sum()


def covers(model, ids: list[int], said: bytes, most: int = 32) -> Covers:
  found = Covers(model.target, model.params, vocabulary(model), ids, most, 8)
  for byte in said:
    found.read(byte)
  return found


@pytest.mark.parametrize("said", [b"", b"a", b"ab", b" ab", b"abab", b" abaab"])
def test_the_law_of_the_next_byte_is_the_sum_over_all_tokens(said):
  probability, law = by_hand(ONE, [4, 1], said)
  got = covers(ONE, [4, 1], said)
  np.testing.assert_allclose(np.exp(got.law()), law, atol=1e-6)
  np.testing.assert_allclose(np.exp(got.log_prob), probability, rtol=1e-5)
  assert got.lost == 0


def test_a_text_cut_inside_a_token_is_not_what_its_tokens_say():
  """Else the enumeration would show nothing."""
  said = " ab"
  of_tokens = covers(ONE, [4, *ONE.tokenizer.encode(said)], b"")
  assert np.abs(np.exp(of_tokens.law()) - by_hand(ONE, [4], said.encode())[1]).max() > 0.05


def test_few_stems_lose_what_they_say():
  got = covers(ONE, [4, 1], b" abaab", 2)
  assert len(got.stems) <= 2 and 0 < got.lost < 1
  np.testing.assert_allclose(np.exp(got.law()).sum(), 1)


def test_nothing_says_what_no_token_has():
  got = covers(ONE, [4], b"z")
  assert got.log_prob == -np.inf and (got.law() == -np.inf).all()


def written(models, prompts: list[tuple[list[int], bytes]], new: int) -> tuple[bytes, float]:
  """(the likeliest bytes one by one, their log-probability) by the mean of the models' laws."""
  said, total = b"", 0.0
  while len(said) < new:
    law = np.mean([by_hand(m, ids, word + said)[1] for m, (ids, word) in
                   zip(models, prompts, strict=True)], 0)  # fmt: skip
    byte = int(law.argmax())
    total += np.log(law[byte])
    if byte == END:
      break
    said += bytes([byte])
  return said, total


@pytest.mark.slow
@pytest.mark.parametrize("models", [[ONE], [OTHER], [ONE, OTHER]], ids=["one", "other", "both"])
def test_the_text_is_that_of_a_loop_over_bytes(models):
  # "ab" are the tokens 4 of ONE and 0, 3 of OTHER.
  parts = [([4], b" a") if m is ONE else ([5, 0, 3], b" a") for m in models]
  said, total = written(models, parts, 4)
  got, = specjax.search.by_bytes(models, ["ab a"], 4, covers=64)  # fmt: skip
  assert (got.said, got.text) == (said, said.decode()) and got.lost == [0.0] * len(models)
  np.testing.assert_allclose(got.log_prob, total, atol=1e-5)


@pytest.mark.slow
def test_a_hole_is_filled_from_its_last_word_on():
  said, total = written([ONE], [([9, 4, 10, 5, 11], b" a")], 3)
  got, = specjax.search.by_bytes(ONE, ["ab a"], 3, behind=[" a"], covers=64)  # fmt: skip
  assert got.said == said
  np.testing.assert_allclose(got.log_prob, total, atol=1e-5)


@pytest.mark.slow
def test_samples_have_the_law():
  _, law = by_hand(ONE, [4], b" a")
  got = specjax.search.by_bytes(ONE, ["ab a"] * 150, 1, temperature=1.0, seed=3)
  first = [x.said[0] if x.said else END for x in got]
  for byte in (*b"ab ", END):
    assert abs(first.count(byte) / 150 - law[byte]) < 4 * np.sqrt(law[byte] / 150) + 1e-9


@pytest.mark.parametrize(
  ("prompt", "first", "word"),
  [("ab a", "ab", b" a"), ("ab ab  ", "ab ab", b"  "), ("aba", "", b"aba"), ("", "", b""),
   (b"ab \xc3", "ab", b" \xc3")],
)  # fmt: skip
def test_a_prompt_is_cut_before_its_last_word(prompt, first, word):
  assert cut(ONE, prompt) == (first, word)


def test_a_prompt_is_not_cut_inside_a_token():
  glued = byte_level([END_OF_TEXT, "a", "b", "Ġ", "bĠ"], [("b", "Ġ")])
  glued.inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  model = dataclasses.replace(MODEL, tokenizer=glued)
  assert cut(model, "a ab a") == ("a", b" ab a")


def test_tokens_that_begin_with_bytes_are_found():
  words = [b"", b"ab", b"a", b"abc", b"b", b"ab", b"", b"ac", b"\xff"]
  table = Vocabulary(words)
  assert sorted(table.ends) == [0, 6]
  for said in (b"", b"a", b"ab", b"abc", b"abcd", b"\xff", b"z"):
    begins = table.beginning(said)
    assert sorted(begins.whole) == [i for i, x in enumerate(words) if x and x == said]
    longer = [i for i, x in enumerate(words) if x.startswith(said) and len(x) > len(said)]
    assert sorted(begins.longer) == longer
    each = zip(begins.longer, begins.after, strict=True)
    assert all(words[i][len(said)] == byte for i, byte in each)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    ({"max_new_bytes": 0}, "`max_new_bytes` must be between 1 and 2147483647, got 0."),
    ({"covers": 0}, "`covers` must be between 1 and 65536, got 0."),
    ({"shares": [1.0, 2.0]}, "`len.shares.` must be 1, the number of models, got 2."),
    ({"shares": [0.0]}, r"`shares\[0\]` must be above 0, got 0.0."),
    ({"behind": []}, "`len.behind.` must be 1, the number of prompts, got 0."),
    ({"models": MODEL}, "`model` must be a model with a tokenizer whose tokens together"),
    ({"models": []}, "`model` must be a specjax.Model"),
    ({"prompts": ["ab"]}, "`prompt` must have white space before its last word"),
    ({"prompts": [b"\xff a"]}, "`prompt` must be text, or bytes of UTF-8"),
    ({"prompts": ["ab z"]}, "`prompt` must be a text that the tokens of a model say"),
    ({"max_new_bytes": CONFIG.max_length}, "must be together at most"),
    ({"models": OTHER, "behind": [""]}, "`behind` must be None for random"),
  ],
)
def test_what_is_not_accepted_is_refused(wrong, message):
  arguments = {"models": ONE, "prompts": ["ab a"]} | wrong
  with pytest.raises(ValueError, match=message):
    specjax.search.by_bytes(**arguments)
