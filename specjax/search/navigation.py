"""In-context navigation: several answers to a question, each round asked for with those before.

Peng et al. 2024 (Correlation and Navigation in the Vocabulary Key Representation Space, arXiv
2410.02284). The logit of a token is the product of a query, which the context makes, and the
token's key. After the few best tokens come those whose keys are like theirs, right or not. What was
found is therefore put into the context, with the request for something else, which moves the query
away from keys that were taken; a round takes only the few best first tokens there.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, switches
from specjax.base import Params, Target
from specjax.decoding.batching import read
from specjax.decoding.decoder import Decoder, pad_to_bucket
from specjax.sampling import likeliest

AGAIN = "{question} Give another answer than {found}."
ENDS = "\n.,;:!?("  # behind the words of an answer


class Navigated(NamedTuple):
  """The answers to a question.

  Attributes:
    answers: each once, in the order in which they were found.
    said: all that was written, one text for each sample.
    rounds: how often the model was asked.
  """

  answers: list[str]
  said: list[str]
  rounds: int


def answer(text: str) -> str:
  """The words before the first punctuation mark or new line behind a word."""
  words = text.strip(f" {ENDS}*\"'")
  end = next((i for i, c in enumerate(words) if c in ENDS), len(words))
  return words[:end].strip(" *\"'")


@functools.partial(jax.jit, static_argnames=("target", "count"))
def _first(target: Target, params: Params, tokens: Array, length: Array, *, count: int) -> Array:
  """i32[count], the likeliest tokens after tokens i32[1, T] of which length i32[1] count."""
  T = tokens.shape[1]
  _, features = target.prefill(params, tokens, length, T)
  last = jnp.take(features.hidden[0], length - 1, axis=0)
  return likeliest(target.head(params, last)[0], count)


def _rows(decoder: Decoder, ids: list[int], count: int) -> list[list[int]]:
  """A prompt with each of the likeliest next tokens behind it, but for those that end a text."""
  target, params = decoder.method.target, decoder.weights.target
  tokens = np.zeros((1, pad_to_bucket(len(ids))), np.int32)
  tokens[0, : len(ids)] = ids
  most = min(count + len(decoder.stop), target.vocab_size)
  length = jnp.full(1, len(ids), jnp.int32)
  best = np.asarray(_first(target, params, jnp.asarray(tokens), length, count=most)).tolist()
  return [[*ids, token] for token in best if token not in decoder.stop][:count]


@switches.hold
def navigated(
  decoder: Decoder,
  questions: Sequence[str],
  n: int = 20,
  max_new_tokens: int = 16,
  *,
  each: int = 4,
  again: str = AGAIN,
) -> list[Navigated]:
  """Several answers to a question: what was found is put into the context, for something else.

  Args:
    decoder: of a model with a chat template; its drafter serves every sample, which is drawn at its
      temperature behind its first token.
    questions: each asks for one thing of many, as "Name a fruit. Answer with the name alone."
    n: samples for each question.
    max_new_tokens: of a sample, its first token included.
    each: samples of a round, which begin with the likeliest first tokens; with n there is one round
      and no navigation.
    again: how it is asked from the second round on; {question} and {found} stand for the question
      and the answers before.

  Raises:
    ValueError: a model without chat template, or a number or text that is not accepted.
  """
  checks.whole("n", n, 1, checks.BATCH)
  checks.whole("each", each, 1, n, "n is the most")
  checks.whole("max_new_tokens", max_new_tokens, 2)
  for name in ("{question}", "{found}"):
    if name not in checks.text("again", again):
      checks.refuse("again", again, f"a text with {name}")
  model, written = decoder.model, []
  for question in checks.sequence("questions", questions, "a list of texts"):
    found: dict[str, None] = {}
    said: list[str] = []
    rounds = 0
    while len(said) < n:
      asked = again.replace("{question}", checks.text("question", question))
      asked = asked.replace("{found}", ", ".join(found)) if found else question
      (ids,), _ = read(model, [model.chat(asked)], max_new_tokens)
      rows = _rows(decoder, ids, min(each, n - len(said)))
      results = decoder(rows, max_new_tokens - 1, first=len(said))
      for row, result in zip(rows, results, strict=True):
        said.append(model.decode([row[-1], *result.tokens], ids))
        if words := answer(said[-1]):
          found.setdefault(words)
      rounds += 1
    written.append(Navigated([*found], said, rounds))
  return written
