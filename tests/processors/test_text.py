"""Regular expressions and stop words as automata over the tokens of the zoo's tokenizer."""

import re

import jax
import numpy as np
import pytest
from cut import cut

from specjax.data.tokenizer import Tokenizer
from specjax.decoding.decoder import Decoder
from specjax.models.transformer import Transformer
from specjax.processors.text import of_regex, of_stop_words

MODEL = cut()
TOKENS, V, STOP = MODEL.tokenizer, MODEL.config.vocab_size, MODEL.stop
QUESTIONS = [
  MODEL.chat("A baker sells 12 loaves a day at 3 dollars each. How much does he earn in 5 days?"),
  MODEL.chat("Tom has 7 apples and buys 4 more. How many does he have?"),
]


def sentence_piece() -> Tokenizer:
  import tokenizers

  vocab = {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "\u2581the": 3, "e": 4, "\u2581": 5}
  inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True))
  inner.decoder = tokenizers.decoders.Sequence(
    [
      tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(),
      tokenizers.decoders.Fuse(),
    ]
  )  # fmt: skip
  return Tokenizer(inner)


def test_tokens_spell_the_bytes_of_a_text():
  spoken = TOKENS.spoken_bytes(V + 2)
  for text in ("He pays 3 * 14 = $42.\n#### 42", "caf\u00e9 \u2192 \U0001f600!", " two  spaces"):
    assert b"".join(spoken[i] for i in TOKENS.encode(text)) == text.encode()
  assert spoken[STOP[0]] == b"" and spoken[V:] == [b"", b""]


def test_sentence_piece_tokens_too():
  assert sentence_piece().spoken_bytes(7) == [
    b"<unk>", b"\xc3", b"\xa9", b" the", b"e", b" ", b"",
  ]  # fmt: skip


@pytest.mark.parametrize("words", [["####"], [" the", "then he", "\n\n"], ["aab", "ab"]])
def test_a_text_is_final_once_a_stop_word_was_said(words):
  following, final = (np.asarray(x) for x in of_stop_words(words, TOKENS, V))
  texts = [
    "so the answer\n#### 42",
    "and then\n\nhe",
    "the",
    "aaaab",
    " aaa b then",
    "other thenhe",
  ]
  for text in texts:
    state, said = 0, ""
    for token in TOKENS.encode(text):
      state, said = following[state, token], said + TOKENS.decode([token])
      assert final[state] == any(w in said for w in words), (text, said)


@pytest.mark.parametrize(
  "pattern", ["[0-9]{1,3}", "(yes|no)", r"[A-Z][a-z ]*\.", r"\$[0-9]+(\.[0-9]{2})?", "(ab|a)*b?"]
)
def test_random_walks_through_a_regex_match_it(pattern):
  following, final = (np.asarray(x) for x in of_regex(pattern, TOKENS, V, STOP))
  assert not final.any()
  rng = np.random.default_rng(0)
  for _ in range(20):
    state, ids = 0, []
    while len(ids) < 12:
      token = rng.choice(np.flatnonzero(following[state] >= 0))
      if token in STOP:
        assert re.fullmatch(pattern, TOKENS.decode(ids)), ids
        break
      ids, state = [*ids, token], following[state, token]


def test_a_regex_forbids_what_does_not_match():
  following = np.asarray(of_regex("[0-9]+ eggs", TOKENS, V, STOP)[0])
  for text, whole in (("12 eggs", True), ("12 egg", False), ("eggs", False), ("12 eggs!", False)):
    state = 0
    for token in (*TOKENS.encode(text), STOP[0]):
      state = following[state, token] if state >= 0 else -1
    assert (state >= 0) == whole, text


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"regex": "(a"}, "regex='(a'"),
    ({"stop_words": [""]}, "stop_words"),
    ({"processors": ["penalties-0"]}, "repetition is above 0"),
    ({"processors": ["momentum-0.2,candidates=0"]}, "candidates=0"),
    ({"processors": ["constraint[(a]"]}, "regex='(a'"),
    ({"processors": ["stop_text"]}, "stop_text[TEXT]"),
  ],
)
def test_bad_settings(settings, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    Decoder(MODEL, **settings)


METHODS = {"plain": "none", "lookup": "prompt_lookup", "eagle": "eagle"}
SETTINGS = {
  "penalties": {"processors": ["penalties-1.3,presence=0.4,frequency=0.2"]},
  "momentum": {"processors": ["momentum"]},
  "regex": {"regex": r"[A-Z][a-zA-Z ]*[0-9]+ [a-z ]*\."},
  "stop words": {"stop_words": ["="]},
}


@pytest.mark.slow
@pytest.mark.full(but=["regex-0.0"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", SETTINGS)
def test_drafts_change_nothing(name, temperature):
  results = {}
  for drafter in METHODS.values():
    decoder = Decoder(
      MODEL, drafter, "target_only" if temperature else None, temperature=temperature,
      batch=2, **SETTINGS[name],
    )  # fmt: skip
    results[drafter] = decoder(QUESTIONS, 24)
  for drafter, got in results.items():
    for a, b in zip(got, results["none"], strict=True):
      assert a.tokens == b.tokens, drafter
      np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
  for result in results["none"]:
    if name == "regex" and result.tokens[-1] in STOP:
      assert re.fullmatch(SETTINGS[name]["regex"], result.text)
    if name == "stop words":
      assert "=" not in result.text
      assert "=" not in TOKENS.decode(result.tokens[:-1])
  if name == "stop words" and temperature == 0:
    assert any("=" in TOKENS.decode(r.tokens) for r in results["none"])


@pytest.mark.slow
def test_log_probs_are_the_models_own():
  """Against one pass over the whole text, whatever the temperature and the penalties."""
  (result,) = Decoder(
    MODEL, "eagle", temperature=0.7, top_k=20, processors=["penalties-1,presence=1"]
  )(QUESTIONS[:1], 24)
  ids = np.array([[*QUESTIONS[0], *result.tokens]], np.int32)
  position = np.arange(ids.shape[1], dtype=np.int32)[None]
  mask = np.tril(np.ones((1, ids.shape[1], ids.shape[1]), bool))
  x, _ = Transformer(MODEL.config).apply(MODEL.params, ids, position, mask)
  log_probs = jax.nn.log_softmax(MODEL.target.head(MODEL.params, x))[0]
  first = len(QUESTIONS[0])
  want = [log_probs[first + i - 1, token] for i, token in enumerate(result.tokens)]
  np.testing.assert_allclose(result.log_probs, want, atol=1e-4)
