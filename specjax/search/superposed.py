"""Superposed decoding: several continuations of a prompt for one pass per token.

Shen et al. 2024 (arXiv 2405.18400). The drafts share one sequence of the target: what it reads is
the mean of their last tokens' embeddings, weighted by their likelihoods. What it says is shared
too, and n-grams of a datastore tell the drafts apart. It is LOSSY: no draft has the target's
distribution, and the longer they get, the less the shared text is any of them. It is for short
completions, such as suggestions while somebody types.

Letters: k drafts, K candidates, S length of texts, E width, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, speculate, switches
from specjax.base import Cache, LayeredTarget, Params, showing
from specjax.data.datastore import Datastore
from specjax.decoding.batching import check_model, read
from specjax.drafters.retrieval.rest import occurrences
from specjax.names.load import Model, Prompt
from specjax.sampling import heated
from specjax.trees.structure import gather

EXACTNESS = "LOSSY (drafts share a pass)"
MIX = (0.01, 0.04, 0.15, 0.18, 0.12)  # of n-grams with 1, 2, .. 5 tokens in front
UNSUPPORTED = -200.0  # in place of the log-probability of a token that no n-gram has


class Superposed(NamedTuple):
  """A continuation: its new ids, their text, and the score in nats by which drafts are ranked."""

  tokens: list[int]
  text: str
  score: float


class SuperposedState(NamedTuple):
  """What rides in the loop: k drafts that go on, and the k best that have ended.

  Attributes:
    texts, ended: i32[k, S], prompts included.
    scores, final: f32[k], -inf where there is no draft.
    length: i32[], of every draft; lengths: i32[k], of those that have ended.
  """

  cache: Cache
  texts: Array
  scores: Array
  length: Array
  ended: Array
  final: Array
  lengths: Array


def log_ngram(store: tuple[Array, Array], recent: Array, tokens: Array) -> Array:
  """f32[k, K]: log-probabilities of tokens i32[K] after the last tokens i32[k, len(MIX)] of drafts.

  Shares in the datastore of n-grams of all orders are mixed; -inf where none is there.
  """
  (k, most), K = recent.shape, len(tokens)
  every = jnp.broadcast_to(recent[:, None], (k, K, most))
  probability = jnp.zeros((k, K))
  for m, weight in enumerate(MIX, 1):
    behind = jnp.broadcast_to(tokens[None, :, None], (k, K, 1))
    query = jnp.concatenate([every[:, :, most - m :], behind], 2).reshape(k * K, m + 1)
    (low, high), (first, end) = (
      occurrences(store, query, jnp.full(k * K, n, jnp.int32)) for n in (m + 1, m)
    )
    share = (high - low).astype(jnp.float32) / jnp.maximum(end - first, 1).astype(jnp.float32)
    probability = probability + weight * share.reshape(k, K)
  return jnp.log(probability)


@functools.partial(jax.jit, static_argnames=("target", "drafts", "new", "candidates"))
def _decode(
  target: LayeredTarget,
  params: Params,
  store: tuple[Array, Array],
  stop: Array,
  tokens: Array,
  alpha: Array,
  temperature: Array,
  *,
  drafts: int,
  new: int,
  candidates: int,
) -> SuperposedState:
  k, K, T = drafts, candidates, tokens.shape[1]
  cache, _ = target.prefill(
    params, tokens, jnp.full(1, T, jnp.int32), speculate.capacity_for(T, new, 0)
  )
  texts = jnp.tile(jnp.pad(tokens, ((0, 0), (0, new))), (k, 1))
  nothing = jnp.full(k, -jnp.inf)
  alone = nothing.at[0].set(0.0)  # all drafts begin with the same prompt: one of them goes on
  length = jnp.int32(T)
  start = SuperposedState(cache, texts, alone, length, texts, nothing, jnp.full(k, T, jnp.int32))

  def step(state: SuperposedState) -> SuperposedState:
    cache, texts, scores, length, ended, final, lengths = state
    last = gather(texts, jnp.full((k, 1), length - 1))
    weight = jax.nn.softmax(scores)[:, None]
    x = (target.embed(params, last)[:, 0] * weight).sum(0)[None, None]
    alone = jnp.ones((1, 1, 1), bool)
    x, kv = target.run_layers(params, x, cache.length[:, None], alone, cache)
    logits = target.head(params, target.norm(params, x))[0, 0]
    cache = target.commit(cache, kv, jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    best, tokens = jax.lax.top_k(heated(logits, temperature), K)
    log_p = jax.nn.log_softmax(best)
    index = length - len(MIX) + jnp.arange(len(MIX), dtype=jnp.int32)[None]
    recent = gather(texts, jnp.maximum(jnp.broadcast_to(index, (k, len(MIX))), 0))
    recent = jnp.where(index >= 0, recent, -2)  # nowhere in a datastore
    of_draft = log_ngram(store, recent, tokens.astype(jnp.int32))
    gram = jnp.where(of_draft > -jnp.inf, alpha * of_draft, jnp.where(alpha > 0, UNSUPPORTED, 0.0))
    every = scores[:, None] + (1 - alpha) * log_p[None] + gram
    score, place = jax.lax.top_k(every.reshape(-1), min(2 * k, k * K))
    draft, token = place // K, tokens[place % K].astype(jnp.int32)
    written = texts[draft].at[:, length].set(token)
    ends = (token[:, None] == stop[None]).any(1)

    def best_of(scores: Array, *arrays: Array) -> tuple[Array, ...]:
      score, place = jax.lax.top_k(scores, k)
      return score, *(x[place] for x in arrays)

    scores, texts = best_of(jnp.where(ends, -jnp.inf, score), written)
    final, ended, lengths = best_of(
      jnp.concatenate([final, jnp.where(ends, score, -jnp.inf)]),
      jnp.concatenate([ended, written]),
      jnp.concatenate([lengths, jnp.full(len(score), length + 1)]),
    )
    return SuperposedState(cache, texts, scores, length + 1, ended, final, lengths)

  def unfinished(state: SuperposedState) -> Array:
    return (state.length < T + new) & (state.scores > -jnp.inf).any()

  return jax.lax.while_loop(unfinished, step, start)


@switches.hold
def superposed(
  model: Model,
  prompt: Prompt,
  store: Datastore,
  drafts: int = 3,
  max_new_tokens: int = 10,
  *,
  alpha: float = 0.54,
  candidates: int = 9,
  temperature: float = 0.06,
) -> list[Superposed]:
  """LOSSY: several continuations of a prompt for one pass per token.

  Each pass, the drafts share the model's likeliest tokens; a draft's score of a token is
  (1 - alpha) log p + alpha log p_ngram. The first token of each draft is another one. Scores are
  not comparable with log-probabilities of a `Result`.

  They are the best `drafts`, best first; see the head of this file.

  Args:
    store: texts whose n-grams count, see `specjax corpus` and `datastore.load`.
    drafts: k.
    max_new_tokens: of each draft, its stop token included.
    alpha: weight of the n-grams; 0 leaves them out.
    candidates: K, tokens shared per pass.
    temperature: of the shared distribution.

  Raises:
    ValueError: a number that is not accepted, or a model that is not a causal transformer.
  """
  check_model(model, causal=True)
  target = showing(LayeredTarget, model.target, "superposed decoding")
  checks.whole("drafts", drafts, 1)
  checks.whole("candidates", candidates, drafts, model.config.vocab_size, "drafts is the least")
  checks.number("alpha", alpha, 0, 1)
  checks.number("temperature", temperature, above=0)
  (ids,), (new,) = read(model, [prompt], max_new_tokens)
  state = jax.device_get(
    _decode(
      target,
      model.params,
      tuple(map(jnp.asarray, store)),
      jnp.asarray([*model.stop, -1]),
      jnp.asarray([ids], jnp.int32),
      jnp.float32(alpha),
      jnp.float32(temperature),
      drafts=drafts,
      new=new,
      candidates=candidates,
    )._replace(cache=None)
  )
  rows: list[tuple[float, Sequence[int]]] = [
    (float(score), np.asarray(text[len(ids) : end]).tolist())
    for scores, texts, ends in (
      (state.scores, state.texts, [state.length] * drafts),
      (state.final, state.ended, state.lengths),
    )
    for score, text, end in zip(scores, texts, ends, strict=True)
    if score > -np.inf
  ]
  best = sorted(rows, key=lambda row: -row[0])[:drafts]
  return [Superposed(list(tokens), model.decode(tokens, ids), score) for score, tokens in best]
