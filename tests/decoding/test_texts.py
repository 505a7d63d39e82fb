"""Texts go on from their prompts and end before a stop, whoever decodes them."""

import contextlib
import dataclasses
import io

import pytest
import tokenizers
from test_conversation import CONFIG, random_model
from tokenizers import decoders, models, pre_tokenizers

from specjax import Decoder, SamplingParams
from specjax.cli import terminal
from specjax.data.tokenizer import Tokenizer
from specjax.decoding.conversation import Conversation
from specjax.decoding.texts import Text
from specjax.search import beam_search
from specjax.serving.engine import Engine

WORDS = ["France", "is", "Paris", "Rome", "the", "in", "of", "and", "old"]
NEW = 12


def worded(*special: str) -> Tokenizer:
  """Words, each with the space before it, of which some are special tokens."""
  pieces = ["<s>", "</s>", "<unk>", *("\u2581" + word for word in WORDS)]
  inner = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
  inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
  inner.decoder = decoders.Metaspace(prepend_scheme="first")
  inner.add_special_tokens(["<s>", "</s>", *special])
  return Tokenizer(inner)


MODEL = random_model(CONFIG, worded())  # as many ids as it has
PROMPT = "France is"


def of(ids) -> str:
  """The text that these ids add after a prompt, by hand."""
  return "".join(f" {WORDS[i - 3]}" for i in ids if i > 2) if 2 not in ids else ""


@pytest.fixture(scope="module")
def plain():
  (result,) = Decoder(MODEL, "prompt_lookup-4")([PROMPT], NEW)
  assert len(set(result.tokens)) > 2 and 2 not in result.tokens
  return result


def shown(decoder: Decoder) -> tuple[str, list[int]]:
  """What a terminal shows of an answer, and its ids."""
  out, ids = io.StringIO(), decoder.model.encode(PROMPT)
  with contextlib.redirect_stdout(out):
    pieces = Conversation(decoder).ask(ids, NEW)
    answer = terminal.show(decoder.model, pieces, ids, decoder.stop_words)
  return out.getvalue().removesuffix("\n"), answer.tokens


@pytest.mark.slow
def test_a_text_goes_on_from_its_prompt(plain):
  assert plain.text == of(plain.tokens) and plain.text.startswith(" ")
  assert shown(Decoder(MODEL, "prompt_lookup-4")) == (plain.text, plain.tokens)
  ((best, *_),) = beam_search(MODEL, [PROMPT], 2, 4)
  assert best.text == of(best.tokens)


def stops(plain):
  """(a token that is not the first of its text, how many tokens there are with its first one)."""
  token = next(i for i in plain.tokens if i > 2 and i != plain.tokens[0])
  return token, plain.tokens.index(token) + 1


@pytest.mark.slow
def test_a_stop_word_may_begin_with_a_space(plain):
  token, count = stops(plain)
  word = f" {WORDS[token - 3]}"
  decoder = Decoder(MODEL, "prompt_lookup-4", stop_words=[word])
  (result,) = decoder([PROMPT], NEW)
  assert (result.tokens, result.text) == (plain.tokens[:count], of(plain.tokens[: count - 1]))
  assert shown(decoder) == (result.text, result.tokens)
  text = Text(MODEL, [word], MODEL.encode(PROMPT))
  assert "".join(text.add([i]) for i in plain.tokens) + text.end() == result.text
  assert text.stopped and text.ids == result.tokens
  with Engine(decoder) as engine:
    for budget in (NEW, count):
      ticket = engine.submit(PROMPT, budget)
      assert ticket.wait() == result.tokens and ticket.reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "stop_words", "processors"])
def test_a_special_token_ends_a_text(plain, how):
  token, count = stops(plain)
  name = "\u2581" + WORDS[token - 3]
  model = dataclasses.replace(MODEL, tokenizer=worded(name))
  given = {"stop": [token], "stop_words": [name], "processors": [f"stop_text[{name}]"]}
  decoder = Decoder(model, "prompt_lookup-4", **{how: given[how]})
  ids = MODEL.encode(PROMPT)
  (result,) = decoder([ids], NEW)
  assert result.tokens == plain.tokens[:count] and result.text == of(plain.tokens[: count - 1])
  with Engine(decoder) as engine:
    ticket = engine.submit(ids, NEW)
    assert ticket.wait() == result.tokens and ticket.reason == "stop"


def test_a_word_of_special_tokens_and_text_is_refused():
  with pytest.raises(
    ValueError,
    match=(r"`stop_words` must be text without special tokens, or one.*got '</s>User:'\."),
  ):
    Decoder(MODEL, stop_words=["the", "</s>User:"])


def test_sampling_params_are_given_whole_or_by_name():
  sampling = SamplingParams(0.7, top_k=3)
  decoder = Decoder(MODEL, sampling=sampling, top_p=0.9)
  assert decoder.sampling == SamplingParams(temperature=0.7, top_k=3, top_p=0.9)
  assert decoder.sampling.filters == {"top_k": 3, "top_p": 0.9}
  by_name = Decoder(MODEL, temperature=0.7, top_k=3)
  whole = Decoder(MODEL, sampling=sampling)
  assert whole([PROMPT], 6)[0].tokens == by_name([PROMPT], 6)[0].tokens
