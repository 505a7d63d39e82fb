"""In-context navigation: several ends of a text, each round asked for with those before.

Peng et al. 2024 (Correlation and Navigation in the Vocabulary Key Representation Space, arXiv
2410.02284). The logit of a token is the product of a query, which the context makes, and the
token's key. After the few best tokens come those whose keys are like theirs, right or not. What was
found is therefore put into the context, with the request for something else, which moves the query
away from keys that were taken; a round takes only the few best first tokens there. A model that is
small rather repeats what it reads, so that a first token is taken once.
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

AGAIN = "Besides {found}, {prompt}"
ENDS = "\n.,;:!?("  # behind the words of an answer


class Navigated(NamedTuple):
  """What ends a text.

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


def _rows(decoder: Decoder, ids: list[int], count: int, taken: set[int]) -> list[list[int]]:
  """A prompt with each of the likeliest next tokens behind it, but for those that are taken."""
  target, params = decoder.method.target, decoder.weights.target
  tokens = np.zeros((1, pad_to_bucket(len(ids))), np.int32)
  tokens[0, : len(ids)] = ids
  most = min(count + len(taken), target.vocab_size)
  length = jnp.full(1, len(ids), jnp.int32)
  best = np.asarray(_first(target, params, jnp.asarray(tokens), length, count=most)).tolist()
  return [[*ids, token] for token in best if token not in taken][:count]


@switches.hold
def navigated(
  decoder: Decoder,
  prompts: Sequence[str],
  n: int = 20,
  max_new_tokens: int = 16,
  *,
  each: int = 4,
  again: str = AGAIN,
) -> list[Navigated]:
  """Several answers to a prompt: what was found is read, and something else asked for.

  Measured: 40 % different right answers (strategies)

  Args:
    decoder: of a model with a tokenizer; its drafter serves every sample, which is drawn at its
      temperature behind its first token.
    prompts: texts that end before one thing of many, as "an example of a fruit is".
    n: samples for each prompt.
    max_new_tokens: of a sample, its first token included.
    each: samples of a round, which begin with the likeliest first tokens; with n there is one round
      and no navigation.
    again: what is read from the second round on; {prompt} and {found} stand for the prompt and the
      answers before.

  Raises:
    ValueError: a model without tokenizer, or a number or text that is not accepted.
  """
  most = decoder.model.config.vocab_size - len(decoder.stop)
  checks.whole("n", n, 1, most, "the tokens that a text may begin with are the most")
  checks.whole("each", each, 1, n, "n is the most")
  checks.whole("max_new_tokens", max_new_tokens, 2)
  for name in ("{prompt}", "{found}"):
    if name not in checks.text("again", again):
      checks.refuse("again", again, f"a text with {name}")
  model, written = decoder.model, []
  for prompt in checks.sequence("prompts", prompts, "a list of texts"):
    found: dict[str, None] = {}
    said: list[str] = []
    taken = {*decoder.stop}
    rounds = 0
    while len(said) < n:
      asked = again.replace("{prompt}", checks.text("prompt", prompt))
      asked = asked.replace("{found}", ", ".join(found)) if found else prompt
      (ids,), _ = read(model, [asked], max_new_tokens)
      rows = _rows(decoder, ids, min(each, n - len(said)), taken)
      results = decoder(rows, max_new_tokens - 1, first=len(said))
      taken |= {row[-1] for row in rows}
      for row, result in zip(rows, results, strict=True):
        said.append(model.decode([row[-1], *result.tokens], ids))
        if words := answer(said[-1]):
          found.setdefault(words)
      rounds += 1
    written.append(Navigated([*found], said, rounds))
  return written
