"""How probable the tokens of a text were where they were drawn, by one more pass over the text.

What the target says of a token does not depend on how it was drafted, so that a text that is whole
is scored as if it had been written token by token.

Letters: B batch, T padded length of a text, N nodes, V vocabulary, E width.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax import speculate, switches
from specjax.base import Context, Params, Processor, Target
from specjax.decoding.decoder import Decoder
from specjax.sampling import SamplingParams, likeliest, warp
from specjax.trees.structure import chain

MOST = 20  # of the likeliest tokens
CHUNK = 32  # tokens whose distributions are held at once


class Score(NamedTuple):
  """A token of a text.

  Attributes:
    log_prob: its natural logarithm, -inf where it could not be drawn.
    likeliest: up to `MOST` tokens that could stand there, with theirs, best first.
  """

  log_prob: float
  likeliest: list[tuple[int, float]]


@switches.hold
def scores(
  decoder: Decoder,
  prompt: Sequence[int],
  new: Sequence[int],
  T: int,
  *,
  budget: int,
  sampling: SamplingParams,
  processors: tuple[Params, ...] | None = None,
  whole: bool = False,
) -> list[Score]:
  """Of each token of `new`, by the distribution that it was drawn from.

  That is the target's after processors and settings; at temperature 0, where one token would have
  all of it, that of temperature 1 without filters.

  Args:
    T: the text is padded to it, and no longer.
    budget: tokens that might have followed the prompt.
    processors: params, in place of the decoder's.
    whole: whether the prompt's tokens but for the first are scored before them, without processors.
  """
  method, weights = decoder.method, decoder.weights
  if sampling.temperature == 0:
    sampling = SamplingParams(1.0)
  text = [*prompt, *new]
  tokens = np.zeros((1, T + CHUNK + 1), np.int32)
  tokens[0, : len(text)] = text
  held = jnp.asarray(tokens)
  limit = np.array([len(prompt) + budget])
  request = decoder.request(np.zeros(1, int), limit, sampling=sampling, processors=processors)
  hidden = _hidden(method.target, weights.target, held[:, :T], jnp.full(1, len(text), jnp.int32))
  context = Context(held, jnp.full(1, len(prompt), jnp.int32))
  memories = speculate.compiled_begun(method.processors, request, context)
  found: list[Score] = []
  parts = [(method.processors, request, memories, len(prompt) - 1, len(text) - 1)]
  if whole:
    parts.insert(0, ((), request._replace(processors=()), (), 0, len(prompt) - 1))
  for called, asked, own, first, last in parts:
    for at in range(first, last, CHUNK):
      rows = min(CHUNK, last - at)
      own, said, ids, best = _chunk(
        method.target,
        called,
        weights.target,
        asked,
        own,
        hidden,
        held,
        jnp.int32(at),
        jnp.full(1, rows, jnp.int32),
      )
      for x, *table in zip(
        *(np.asarray(y)[:rows].tolist() for y in (said, ids, best)), strict=True
      ):
        likely = [(i, y) for i, y in zip(*table, strict=True) if y > -np.inf]
        found.append(Score(x, likely))
  return found


@functools.partial(jax.jit, static_argnames="target")
def _hidden(target: Target, params: Params, tokens: Array, length: Array) -> Array:
  """The states [1, T + CHUNK, E] of a text i32[1, T], filled up with 0."""
  _, features = target.prefill(params, tokens, length, tokens.shape[1])
  return jnp.pad(features.hidden, ((0, 0), (0, CHUNK), (0, 0)))


@functools.partial(jax.jit, static_argnames=("target", "processors"))
def _chunk(
  target: Target,
  processors: tuple[Processor, ...],
  params: Params,
  request: speculate.DecodeRequest,
  memories: tuple[Any, ...],
  hidden: Array,
  tokens: Array,
  at: Array,
  rows: Array,
) -> tuple[tuple[Any, ...], Array, Array, Array]:
  """Scores the `rows` i32[1] tokens after place `at` i32[], as if a chain of them was drafted.

  (The processors' states after them; log-probabilities f32[N]; i32[N, M] and f32[N, M] of the
  likeliest.)
  """
  text = lax.dynamic_slice_in_dim(tokens, at, CHUNK + 1, 1)
  draft = chain(text[:, :-1], jnp.arange(CHUNK)[None] < rows[:, None])
  mask = jnp.tril(jnp.ones((1, CHUNK, CHUNK), bool))
  logits = target.head(params, lax.dynamic_slice_in_dim(hidden, at, CHUNK, 1))
  each = list(zip(processors, request.processors, memories, strict=True))
  for p, w, own in each:
    logits = p.logits(w, own, draft=draft, mask=mask, logits=logits)
  log_probs = warp(logits, request.settings)[0]
  best = likeliest(log_probs, min(MOST, log_probs.shape[-1]))
  after = text[0, 1:]
  memories = tuple(p.update(w, own, tokens=after[None], rows=rows) for p, w, own in each)
  said = jnp.take_along_axis(log_probs, after[:, None], 1)[:, 0]
  return memories, said, best, jnp.take_along_axis(log_probs, best, 1)
