"""Beam search, plain or in groups that keep apart: the likeliest texts instead of samples.

Plain beam search has one group. Diverse beam search, Vijayakumar et al. 2016 (arXiv 1610.02424,
section 4, with Hamming diversity), has several: in every step they choose one after the other, and
a token costs a group `diversity` nats for each beam of earlier groups that has just chosen it. That
decides which beams go on; a beam's log-probability remains the model's. Texts that are searched
have no law of sampling, so no draft is verified here.

Letters: k beams, G groups, b = k / G beams of a group, C candidates, S capacity of texts,
T prompt length, M stop tokens, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks, speculate, switches
from specjax.base import Cache, Params, Target
from specjax.decoding.batching import check_model, read
from specjax.decoding.decoder import pad_to_bucket
from specjax.models.cache import read_one
from specjax.names.load import Model, Prompt
from specjax.trees.structure import gather


class Beam(NamedTuple):
  """A text that was found: new ids, their text, its log-probability in nats, and its score."""

  tokens: list[int]
  text: str
  log_prob: float
  score: float


class BeamSearchState(NamedTuple):
  """What rides in the loop.

  Attributes:
    cache: of k rows, those of the beams that go on.
    texts: i32[k, S], prompts included, of one length i32[].
    log_probs: f32[G, b], of the beams that go on; -inf where there is none.
    ended: i32[G, b, S], the best texts with a stop token, of lengths i32[G, b].
    final: f32[G, b], their scores; -inf where there is none.
  """

  cache: Cache
  texts: Array
  length: Array
  log_probs: Array
  ended: Array
  lengths: Array
  final: Array


@functools.partial(jax.jit, static_argnames=("target", "beams", "groups", "capacity"))
def search(
  target: Target,
  params: Params,
  tokens: Array,
  length: Array,
  limit: Array,
  stop: Array,
  diversity: Array,
  penalty: Array,
  *,
  beams: int,
  groups: int,
  capacity: int,
) -> BeamSearchState:
  """The state after the search from one prompt, tokens i32[1, T] of which length i32[] count.

  Texts end at length limit i32[] or at a token of stop i32[M]. The score of a text is its
  log-probability over (new tokens) ** penalty, f32[].
  """
  k, G, V = beams, groups, target.vocab_size
  b = k // G
  C = b * min(1 + len(stop), V)  # so many hold b without a stop token
  prefilled, _ = target.prefill(params, tokens, length[None], capacity)
  cache = jax.tree.map(lambda x: jnp.repeat(x, k, 0), prefilled)
  texts = jnp.tile(jnp.pad(tokens, ((0, 0), (0, capacity - tokens.shape[1]))), (k, 1))
  nothing = jnp.full((G, b), -jnp.inf)
  # All beams begin with the same prompt: one of each group goes on.
  start = BeamSearchState(
    cache,
    texts,
    length,
    nothing.at[:, 0].set(0.0),
    texts.reshape(G, b, -1),
    jnp.full((G, b), length),
    nothing,
  )

  def score(log_probs: Array, end: Array) -> Array:
    return log_probs / (end - length).astype(jnp.float32) ** penalty

  def group(g: int, state: BeamSearchState, log_p: Array, said: Array):
    """What group g makes of log_p f32[b, V], when earlier ones have chosen tokens said f32[V]."""
    total = (state.log_probs[g][:, None] + log_p).reshape(-1)
    rank, place = jax.lax.top_k(total - jnp.tile(diversity * said, b), C)
    total, row, token = total[place], g * b + place // V, (place % V).astype(jnp.int32)
    ends = (token[:, None] == stop[None]).any(1)
    rank, on = jax.lax.top_k(jnp.where(ends, -jnp.inf, rank), b)
    log_probs = jnp.where(rank > -jnp.inf, total[on], -jnp.inf)
    # As many as there are beams may end, the best.
    last = jnp.where(ends[:b], score(total[:b], state.length + 1), -jnp.inf)
    final, best = jax.lax.top_k(jnp.concatenate([state.final[g], last]), b)
    written = state.texts[row[:b]].at[:, state.length].set(token[:b])
    ended = jnp.concatenate([state.ended[g], written])[best]
    lengths = jnp.concatenate([state.lengths[g], jnp.full(b, state.length + 1)])[best]
    said = said.at[token[on]].add((rank > -jnp.inf).astype(jnp.float32))
    return said, (row[on], token[on], log_probs, ended, lengths, final)

  def step(state: BeamSearchState) -> BeamSearchState:
    last = gather(state.texts, jnp.full((k, 1), state.length - 1))[:, 0]
    logits, cache = read_one(target, params, state.cache, last)
    log_p = jax.nn.log_softmax(logits).reshape(G, b, V)
    said, found = jnp.zeros(V), []
    for g in range(G):
      said, own = group(g, state, log_p[g], said)
      found.append(own)
    row, token, log_probs, ended, lengths, final = map(jnp.stack, zip(*found, strict=True))
    row = row.reshape(-1)
    cache = jax.tree.map(lambda x: x[row], cache)
    texts = state.texts[row].at[:, state.length].set(token.reshape(-1))
    return BeamSearchState(cache, texts, state.length + 1, log_probs, ended, lengths, final)

  def unfinished(state: BeamSearchState) -> Array:
    # Log-probabilities only fall, and the longest text divides its own by most.
    hope = score(state.log_probs.max(1), limit)
    return (state.length < limit) & (hope > state.final.min(1)).any()

  return jax.lax.while_loop(unfinished, step, start)


def hypotheses(
  state: BeamSearchState, start: int, limit: int, penalty: float
) -> list[tuple[float, list]]:
  """(score, new ids) of the b best texts of each group, best first; equal texts once.

  The state is on the host. Beams without a stop token count where they have reached the limit.
  """
  G, b = state.final.shape
  texts = np.asarray(state.texts).reshape(G, b, -1)
  reached = state.log_probs / float(limit - start) ** penalty
  going = np.where(state.length == limit, reached, -np.inf)
  found: dict[tuple[int, ...], float] = {}
  for g in range(G):
    scores = np.concatenate([state.final[g], going[g]])
    every = np.concatenate([state.ended[g], texts[g]])
    ends = np.concatenate([state.lengths[g], np.full(b, limit)])
    for i in np.argsort(-scores, kind="stable")[:b]:
      if scores[i] > -np.inf:
        found.setdefault(tuple(every[i, start : ends[i]].tolist()), float(scores[i]))
  return sorted(((score, list(text)) for text, score in found.items()), key=lambda x: -x[0])


@switches.hold
def beam_search(
  model: Model,
  prompts: Sequence[Prompt],
  beams: int = 4,
  max_new_tokens: int | Sequence[int] = 128,
  *,
  groups: int = 1,
  diversity: float = 0.5,
  length_penalty: float = 1.0,
  stop: Sequence[int] = (),
) -> list[list[Beam]]:
  """The likeliest texts after a prompt, plain or in groups that keep apart.

  There are `beams` at most, best first; see the head of this file.

  Measured: 33.3 % right (strategies)

  Args:
    prompts: texts, or lists of ids; they are searched one after the other.
    beams: k.
    max_new_tokens: a budget for all, or one per prompt, a stop token included.
    groups: G, which divides k; 1 is plain beam search.
    diversity: nats that a token costs for every beam of an earlier group that has chosen it.
    length_penalty: texts are compared by log-probability / (new tokens) ** length_penalty; 0
      compares log-probabilities.
    stop: ids that end a text, besides the model's own.

  Raises:
    ValueError: a model that is not causal, or a number that is not accepted.
    FloatingPointError: the model's logits are NaN.
  """
  check_model(model, causal=True)
  V = model.config.vocab_size
  checks.whole("beams", beams, 1, checks.BATCH)
  checks.whole("groups", groups, 1, beams)
  if beams % groups:
    checks.refuse("groups", groups, f"a divisor of beams={beams}")
  checks.number("diversity", diversity, 0, 1e6)
  checks.number("length_penalty", length_penalty, 0, 6)  # float32 holds its power
  ends = jnp.asarray(sorted({*model.stop, *checks.ids("stop", stop, V)}) or [-1], jnp.int32)
  found = []
  for prompt, budget in zip(*read(model, prompts, max_new_tokens), strict=True):
    start, T = len(prompt), pad_to_bucket(len(prompt))
    tokens = np.zeros((1, T), np.int32)
    tokens[0, :start] = prompt
    limit = start + budget
    state = search(
      model.target,
      model.params,
      jnp.asarray(tokens),
      jnp.int32(start),
      jnp.int32(limit),
      ends,
      jnp.float32(diversity),
      jnp.float32(length_penalty),
      beams=beams,
      groups=groups,
      capacity=-(-speculate.capacity_for(T, budget, 0) // 64) * 64,
    )
    best = hypotheses(jax.device_get(state._replace(cache=None)), start, limit, length_penalty)
    if not best:
      raise FloatingPointError(f"the logits of {model.name} became NaN.")
    found.append(
      [
        Beam(ids, model.decode(ids, prompt), score * len(ids) ** length_penalty, score)
        for score, ids in best[:beams]
      ]
    )
  return found
