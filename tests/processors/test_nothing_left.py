"""Where no token is left to sample, or no text fits, an error names what forbids it."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

from specjax.base import Processor
from specjax.decoding.decoder import Decoder
from specjax.serving.engine import Engine
from specjax.serving.refill import refilled

MODEL = cut()
SPOKEN = MODEL.tokenizer.spoken_bytes(MODEL.config.vocab_size)
LETTERS = np.array([b.isalpha() for b in SPOKEN])


def only(name: str, change) -> Processor:
  """Changes the logits the same way everywhere."""

  def logits(params, state, draft, mask, logits):
    return change(logits)

  return Processor(
    name, lambda params, context, limit: (), logits,
    lambda params, state, tokens: jnp.zeros(tokens.shape, bool),
    lambda params, state, tokens, rows: (),
  )  # fmt: skip


letters = only("letters", lambda x: jnp.where(LETTERS, x, -jnp.inf))
silent = only("silent", lambda x: jnp.full_like(x, -jnp.inf))
broken = only("broken", lambda x: x * jnp.nan)
harmless = only("harmless", lambda x: x - 1)
DOLLARS = "[0-9]+ dollars"
CASES = {
  "two": ({"regex": DOLLARS, "processors": [letters]},
          "letters and constraint[[0-9]+ dollars] left no token to sample after 0 new tokens"),
  "two forms": ({"processors": ["constraint[[0-9]+]", "constraint[[a-z]+]"]},
                "constraint[[0-9]+] and constraint[[a-z]+] left no token"),
  "one": ({"processors": [silent]}, "prompt 0: silent left no token"),
  "one of two": ({"processors": [harmless, silent, "penalties-1.3"]}, "prompt 0: silent left"),
  "NaN": ({"processors": [broken]}, "broken left no token"),
  "later": ({"regex": "(yes|no)!!", "processors": [only("calm", lambda x: jnp.where(
              np.array([b"!" in b for b in SPOKEN]), -jnp.inf, x))]},
            "calm and constraint[(yes|no)!!] left no token"),
  "a schema": ({"json_schema": {"type": "integer"}, "processors": [letters]}, "and json_schema"),
}  # fmt: skip


@pytest.mark.full(but=["prompt_lookup-0.8-two", "none-0.0-*"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["none", "prompt_lookup"])
def test_the_error_names_what_forbids(drafter, temperature, name):
  settings, message = CASES[name]
  rule = "target_only" if temperature else None
  decoder = Decoder(MODEL, drafter, rule, temperature=temperature, **settings)
  with pytest.raises(ValueError, match=re.escape(message)) as error:
    decoder(["It costs "], 8)
  assert "\n" not in str(error.value)


def test_a_request_that_fails_so_ends_alone():
  decoder = Decoder(MODEL, processors=["json_schema", letters], batch=2)
  with Engine(decoder, max_length=64) as engine:
    bad = engine.submit("It costs ", 8, json_schema={"type": "integer"})
    good = engine.submit("It costs ", 8)
    with pytest.raises(ValueError, match="letters and json_schema left no token"):
      bad.wait()
    assert len(good.wait()) == 8


@pytest.mark.parametrize(("value", "kind"), [(-np.inf, "infinite"), (np.inf, "infinite")])
def test_infinite_logits_are_said(value, kind):
  def evaluate(*arguments, **more):
    found = MODEL.target.evaluate(*arguments, **more)
    return found._replace(logits=jnp.full_like(found.logits, value))

  decoder = Decoder(MODEL)
  decoder.method = decoder.method._replace(
    target=dataclasses.replace(MODEL.target, evaluate=evaluate)
  )
  with pytest.raises(FloatingPointError, match=f"became {kind} after 0"):
    decoder([[1, 2]], 4)


SIX = {"regex": "[A-Z]{9} [0-9]{9}"}
WHOLE = {"json_schema": {"enum": ["Paris, the capital of France, where it rains in November"]}}


@pytest.mark.parametrize("settings", [SIX, WHOLE], ids=["regex", "schema"])
def test_a_budget_too_small_is_refused_before_decoding(settings):
  decoder = Decoder(MODEL, **settings)
  least = decoder.least_budget
  message = f"`max_new_tokens` must be at least {least}, the tokens .*, got {least - 1}"
  calls = [
    lambda n: decoder(["It is "], n), lambda n: list(decoder.stream(["It is "], n)),
    lambda n: list(refilled(decoder, ["It is "], n)),
  ]  # fmt: skip
  for call in calls:
    with pytest.raises(ValueError, match=message):
      call(least - 1)
  (result,) = decoder(["It is "], least)
  assert len(result.tokens) == least and result.tokens[-1] not in MODEL.stop
  assert re.fullmatch(settings.get("regex", ".*November.*"), result.text)


def test_a_text_without_stop_tokens_ends_where_nothing_may_follow():
  mute = dataclasses.replace(MODEL, stop=())
  (result,) = Decoder(mute, regex="[0-9]{3}")(["It costs "], 20)
  assert re.fullmatch("[0-9]{3}", result.text)
