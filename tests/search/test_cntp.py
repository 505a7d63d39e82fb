"""Cautious next-token prediction against a loop over whole texts."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_conversation import CONFIG, MODEL, random_model
from test_switching import after

import specjax
from specjax.data.tokenizer import train_bpe
from specjax.sampling import Noise, request_keys
from specjax.search.cntp import EXACTNESS, marks

PROMPTS = [[1, 2, 3, 4, 1], [7]]
NEW, MARKS = 8, [2, 9]
# Of smaller logits, so that it is unsure; and its texts may end.
UNSURE = dataclasses.replace(
  MODEL, params=jax.tree.map(lambda x: 0.7 * x, MODEL.params), stop=(5,), name="unsure"
)


@jax.jit
def plain(key, position, log_p):
  return Noise(key, position).choose(log_p[None, None], jnp.zeros((1, 1), jnp.int32))[0, 0]


@jax.jit
def of_stream(key, position, stream, log_p):
  return Noise(key, position).draw(stream, log_p[None])[0]


def law(text, temperature):
  scaled = after(UNSURE, text) / temperature
  scaled -= scaled.max()
  return scaled - np.log(np.exp(scaled).sum())


def by_hand(r, prompt, K, low, high, temperature, seed):
  """(new ids, trials of each, tokens drawn): one trial after the other, nothing kept in memory."""
  key, text, trials, drawn = request_keys(seed, jnp.full(1, r)), list(prompt), [], 0
  limit = len(prompt) + NEW
  while len(text) < limit and not (trials and text[-1] in UNSURE.stop):
    log_p, place = law(text, temperature), jnp.full(1, len(text))
    entropy = -(np.exp(log_p) * log_p).sum()
    count = int(1 + (K - 1) * np.clip((entropy - low) / (high - low), 0, 1))
    found = []
    for j in range(count):
      trial, total = list(text), 0.0
      while len(trial) < limit:
        log_p = law(trial, temperature)
        given = jnp.asarray(log_p, jnp.float32)
        stream = 1 + K * (len(trial) - len(text)) + j
        one = plain(key, place, given) if count == 1 else of_stream(key, place, stream, given)
        trial.append(int(one))
        total += log_p[trial[-1]]
        if count == 1 or trial[-1] in (*MARKS, *UNSURE.stop):
          break
      found.append((np.exp(-total / (len(trial) - len(text))), trial))
      drawn += len(trial) - len(text)
    best = min(found, key=lambda x: x[0])[1]
    trials += [count] * (len(best) - len(text))
    text = best
  return text[len(prompt) :], trials, drawn


@pytest.mark.slow
@pytest.mark.full(but=["8-*"])
@pytest.mark.parametrize(
  ("trials", "low", "high", "temperature"), [(5, 0.01, 1.5, 0.6), (8, 1.0, 2.0, 1.0)]
)
def test_the_text_is_that_of_a_loop(trials, low, high, temperature):
  got = specjax.search.cntp(
    UNSURE, PROMPTS, NEW, trials=trials, low=low, high=high, temperature=temperature, seed=2,
    punctuation=MARKS,
  )  # fmt: skip
  for r, (prompt, one) in enumerate(zip(PROMPTS, got, strict=True)):
    want = by_hand(r, prompt, trials, low, high, temperature, 2)
    assert (one.tokens, one.trials, one.drawn) == want
  counts = {n for one in got for n in one.trials}
  assert len(counts) > 1 and max(counts) <= trials and EXACTNESS.startswith("LOSSY")


@pytest.mark.full
def test_a_sure_model_is_plain_sampling():
  got = specjax.search.cntp(UNSURE, PROMPTS, NEW, trials=3, high=99.0, temperature=0.8, seed=4,
                     punctuation=MARKS)  # fmt: skip
  want = specjax.Decoder(UNSURE, temperature=0.8, seed=4)(PROMPTS, NEW)
  assert [x.tokens for x in got] == [x.tokens for x in want]
  assert all(x.trials == [1] * x.drawn for x in got)


def test_a_mark_ends_a_token_however_it_begins():
  tokenizer = train_bpe(["He said: (no.)\n\nNo.\n"] * 9, 290)
  size = tokenizer.vocab_size + 3  # a model may have more
  model = random_model(dataclasses.replace(CONFIG, vocab_size=size, layers=1), tokenizer)
  ends = marks(model)
  spoken = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
  assert ends == [i for i, x in enumerate(spoken) if x and x[-1] in ".,\n?!:;)]}"]
  assert any(len(spoken[i]) > 1 for i in ends)


@pytest.mark.parametrize(
  "wrong",
  [{"trials": 0}, {"low": -1.0}, {"high": 0.01}, {"temperature": 0}, {"seed": -1},
   {"max_new_tokens": 0}, {"punctuation": None}, {"punctuation[0]": 99}],
)  # fmt: skip
def test_bad_numbers_are_refused(wrong):
  name, value = next(iter(wrong.items()))
  given = {"punctuation": [value]} if "[" in name else wrong
  with pytest.raises(ValueError, match=f"`{re.escape(name)}` must be .*, got {value}"):
    specjax.search.cntp(MODEL, PROMPTS, **{"punctuation": MARKS} | given)
