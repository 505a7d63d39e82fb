"""Two models in turns against a loop over whole texts."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conversation import CONFIG, MODEL, random_model

import specjax
from specjax.sampling import Settings, request_keys
from specjax.search.switching import EXACTNESS, write

SMALL = dataclasses.replace(
  random_model(dataclasses.replace(CONFIG, layers=1)), stop=(), name="small"
)
PROMPTS = [[1, 2, 3, 4, 1], [7]]
NEW = 30


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, tokens):
  """f32[64, V] after every token of a text i32[64] that is read as a whole."""
  mask = jnp.tril(jnp.ones((1, 64, 64), bool))
  depth, target = jnp.arange(64, dtype=jnp.int32)[None], model.target
  x = target.embed(model.params, tokens[None])
  x, _ = target.run_layers(model.params, x, depth, mask)
  return target.head(model.params, target.norm(model.params, x))[0]


def after(model, text):
  """log-probabilities f64[V] after a text."""
  padded = np.array(text + [0] * (64 - len(text)), np.int32)
  logits = np.asarray(logits_of(model, padded))[len(text) - 1].astype(float)
  logits -= logits.max()
  return logits - np.log(np.exp(logits).sum())


def by_hand(prompt, new, threshold, window, dwell):
  text, entropies, wrote, large, turn = list(prompt), [], [], False, 0
  for _ in range(new):
    log_p = after(MODEL if large else SMALL, text)
    entropies.append(-(np.exp(log_p) * log_p).sum() / np.log(2))
    text.append(int(log_p.argmax()))
    wrote.append(large)
    turn += 1
    wanted = np.mean(entropies[-window:]) >= threshold
    if turn >= dwell and wanted != large:
      large, turn = wanted, 0
  return text[len(prompt) :], [bool(x) for x in wrote]


@pytest.mark.slow
@pytest.mark.parametrize(("window", "dwell"), [(5, 10), (2, 1)])
def test_the_turns_are_those_of_a_loop(window, dwell):
  got = specjax.search.switching(SMALL, MODEL, PROMPTS, 0.35, NEW, window=window, dwell=dwell)
  for prompt, one in zip(PROMPTS, got, strict=True):
    assert (one.tokens, one.large) == by_hand(prompt, NEW, 0.35, window, dwell)
  assert any(0 < sum(one.large) < NEW for one in got) and EXACTNESS.startswith("LOSSY")


@pytest.mark.full
def test_a_threshold_that_is_never_reached_is_the_small_model():
  (got,) = specjax.search.switching(SMALL, MODEL, PROMPTS[:1], 99.0, NEW, temperature=0.8, seed=4)
  (want,) = specjax.Decoder(SMALL, temperature=0.8, seed=4)(PROMPTS[:1], NEW)
  assert got.tokens == want.tokens and not any(got.large)


@pytest.mark.parametrize(
  "wrong", [{"window": 0}, {"dwell": 0}, {"temperature": -1}, {"seed": -1}, {"max_new_tokens": 0}]
)
def test_bad_numbers_are_refused(wrong):
  with pytest.raises(
    ValueError, match="`{}` must be .*, got {}".format(*next(iter(wrong.items())))
  ):
    specjax.search.switching(SMALL, MODEL, PROMPTS, 1.0, **wrong)
  with pytest.raises(ValueError, match="`threshold` must be at least 0, got "):
    specjax.search.switching(SMALL, MODEL, PROMPTS, -1.0)
  other = random_model(dataclasses.replace(CONFIG, vocab_size=9))
  with pytest.raises(ValueError, match="large="):
    specjax.search.switching(SMALL, other, PROMPTS, 1.0)


@pytest.mark.slow
def test_no_cache_is_copied():
  one, none, some = jnp.ones(1), jnp.zeros(1, jnp.int32), jnp.int32(9)
  arguments = (
    (SMALL.target, MODEL.target), (SMALL.params, MODEL.params), jnp.zeros((1, 16), jnp.int32),
    none + 5, some, none, Settings(one, none, one, 0 * one), request_keys(0, none), jnp.float32(0),
    some,
  )  # fmt: skip
  program = write.lower(*arguments, capacity=192, window=5).compile().as_text()
  assert re.findall(r"f32\[1,1,192,8\]", program)
  assert not re.findall(r"f32\[1,1,192,8\]\S* copy\(", program)
