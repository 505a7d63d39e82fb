"""Cautious next-token prediction: where the model is uncertain, the best of several pieces of text.

Wang et al. 2025 (arXiv 2507.03038, algorithm 1). The higher the entropy of the next token, the more
trials are sampled from there on, each to the next punctuation mark, and the trial of the lowest
perplexity is kept. It is LOSSY: what is kept of several samples has not the law of one. As the
perplexity is per token, a trial that ends early with likely tokens wins over a longer one.

Letters: K trials at most, S capacity of texts, T prompt length, V vocabulary.
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
from specjax.sampling import DRAFT, Noise, Settings, request_keys, warp

EXACTNESS = "LOSSY (the likeliest of several samples is kept)"
PUNCTUATION = b".,\n?!:;)]}"


class Cautious(NamedTuple):
  """A text: its new ids, their text, of how many trials each id was kept, and all tokens drawn."""

  tokens: list[int]
  text: str
  trials: list[int]
  drawn: int


class CNTPState(NamedTuple):
  """What rides in the loop.

  Attributes:
    text: i32[S], the prompt included, of length i32[].
    trials: i32[S].
    drawn: i32[].
    done, failed: bool[]; failed where the logits were NaN.
  """

  cache: Cache
  text: Array
  length: Array
  trials: Array
  drawn: Array
  done: Array
  failed: Array


class Trials(NamedTuple):
  """K continuations of one text, each with its own cache.

  Attributes:
    texts: i32[K, S], of lengths i32[K].
    log_prob: f32[K], of the tokens that were added.
    live: bool[K], whether more are added.
    step: i32[].
  """

  cache: Cache
  texts: Array
  lengths: Array
  log_prob: Array
  live: Array
  step: Array


@functools.partial(jax.jit, static_argnames=("target", "trials", "capacity"))
def write(
  target: Target,
  params: Params,
  tokens: Array,
  length: Array,
  limit: Array,
  stop: Array,
  breaks: Array,
  settings: Settings,
  key: Array,
  low: Array,
  high: Array,
  *,
  trials: int,
  capacity: int,
) -> CNTPState:
  """The state after the text, from one prompt, tokens i32[1, T] of which length i32[] count.

  A trial ends after a token of breaks bool[V], the text after one of stop bool[V] or at length
  limit i32[]. The other arguments are those of `cntp`.
  """
  K = trials
  cache, _ = target.prefill(params, tokens, length[None], capacity)
  text = jnp.pad(tokens[0], (0, capacity - tokens.shape[1]))
  no, rows = jnp.bool(False), jnp.arange(K, dtype=jnp.int32)
  start = CNTPState(cache, text, length, jnp.zeros(capacity, jnp.int32), jnp.int32(0), no, no)

  def law(logits: Array) -> Array:
    return warp(logits[:, None], settings)[:, 0]

  def alone(state: CNTPState, log_p: Array, count: Array) -> CNTPState:
    """One token more, that of plain sampling."""
    noise = Noise(key, state.length[None])
    token = noise.choose(log_p[:, None], jnp.zeros((1, 1), jnp.int32))[0, 0]
    return state._replace(
      text=state.text.at[state.length].set(token),
      length=state.length + 1,
      trials=state.trials.at[state.length].set(count),
      drawn=state.drawn + 1,
    )

  def several(state: CNTPState, log_p: Array, count: Array) -> CNTPState:
    """The best of `count` trials more."""
    noise = Noise(key, state.length[None])

    def draw(stream: Array, log_p: Array) -> Array:
      return noise.draw(stream, log_p[None])[0]

    def add(x: Trials, log_p: Array) -> Trials:
      token = jax.vmap(draw)(DRAFT + x.step * K + rows, log_p)
      more = jnp.take_along_axis(log_p, token[:, None], 1)[:, 0]
      # Behind the end of a trial that is not live the text is garbage.
      texts = x.texts.at[rows, x.lengths].set(token)
      lengths = x.lengths + x.live.astype(jnp.int32)
      return x._replace(
        texts=texts,
        lengths=lengths,
        log_prob=x.log_prob + jnp.where(x.live, more, 0.0),
        live=x.live & ~breaks[token] & (lengths < limit),
        step=x.step + 1,
      )

    def go_on(x: Trials) -> Trials:
      last = jnp.take_along_axis(x.texts, x.lengths[:, None] - 1, 1)[:, 0]
      logits, cache = read_one(target, params, x.cache, last, x.live)
      return add(x._replace(cache=cache), law(logits))

    counted = rows < count
    begin = Trials(
      jax.tree.map(lambda x: jnp.repeat(x, K, 0), state.cache),
      jnp.tile(state.text, (K, 1)),
      jnp.full(K, state.length),
      jnp.zeros(K),
      counted,
      jnp.int32(0),
    )
    first = add(begin, jnp.broadcast_to(log_p, (K, log_p.shape[1])))
    x = jax.lax.while_loop(lambda x: x.live.any(), go_on, first)
    new = x.lengths - state.length
    per_token = x.log_prob / jnp.maximum(new, 1).astype(jnp.float32)
    best = jnp.argmax(jnp.where(counted, per_token, -jnp.inf))
    place = jnp.arange(capacity, dtype=jnp.int32)
    kept = (place >= state.length) & (place < x.lengths[best])
    return state._replace(
      cache=jax.tree.map(lambda rows: rows[best][None], x.cache),
      text=x.texts[best],
      length=x.lengths[best],
      trials=jnp.where(kept, count, state.trials),
      drawn=state.drawn + new.sum(),
      failed=jnp.isnan(per_token[best]),
    )

  def step(state: CNTPState) -> CNTPState:
    root = jax.lax.dynamic_slice_in_dim(state.text, state.length - 1, 1)
    logits, cache = read_one(target, params, state.cache, root)
    log_p = law(logits)
    entropy = -jnp.where(log_p > -jnp.inf, jnp.exp(log_p) * log_p, 0.0).sum()
    share = jnp.clip((entropy - low) / (high - low), 0.0, 1.0)
    count = jnp.floor(1 + (K - 1) * share).astype(jnp.int32)
    state = jax.lax.cond(count > 1, several, alone, state._replace(cache=cache), log_p, count)
    failed = state.failed | jnp.isnan(log_p).any()
    ended = stop[state.text[state.length - 1]] | (state.length >= limit)
    return state._replace(done=ended | failed, failed=failed)

  return jax.lax.while_loop(lambda state: ~state.done, step, start)


def marks(model: Model) -> list[int]:
  """The ids whose text ends with a punctuation mark, see `PUNCTUATION`."""
  if model.tokenizer is None:
    checks.refuse("punctuation", None, f"a list of ids, as {model.name} has no tokenizer")
  spoken = model.tokenizer.spoken_bytes(model.config.vocab_size)
  return [i for i, said in enumerate(spoken) if said and said[-1] in PUNCTUATION]


@switches.hold
def cntp(
  model: Model,
  prompts: Sequence[Prompt],
  max_new_tokens: int | Sequence[int] = 128,
  *,
  trials: int = 40,
  low: float = 0.01,
  high: float = 1.5,
  temperature: float = 1.0,
  seed: int = 0,
  punctuation: Sequence[int] | None = None,
) -> list[Cautious]:
  """LOSSY: where the model is uncertain, keeps the likeliest of several continuations.

  Prompts are answered one after the other; see the head of this file.

  Measured: 30.0 % right (strategies)

  Args:
    model: causal.
    prompts: texts, or lists of ids.
    max_new_tokens: a budget for all, or one per prompt.
    trials: K, the rows of a pass where trials are made. Of an entropy in nats, at the temperature,
      of `low` or less there is one, of `high` or more there are K, in between in proportion.
    temperature: above 0.
    seed: of the noise; prompt r has that of request r of a `Decoder`.
    punctuation: ids after which a trial ends; by default those whose text ends with a mark. It
      ends at a stop token, too.

  Raises:
    ValueError: a model that is not causal, or a number that is not accepted.
    FloatingPointError: the logits became NaN.
  """
  check_model(model, causal=True)
  V = model.config.vocab_size
  checks.whole("trials", trials, 1, checks.BATCH)
  checks.number("low", low, 0)
  checks.number("high", high, above=low, note="it is above low")
  checks.number("temperature", temperature, above=0)
  checks.whole("seed", seed, 0, checks.SEED)
  ends = marks(model) if punctuation is None else checks.ids("punctuation", punctuation, V)
  stop, breaks = np.zeros(V, bool), np.zeros(V, bool)
  stop[list(model.stop)] = breaks[[*ends, *model.stop]] = True
  one, none = jnp.ones(1), jnp.zeros(1, jnp.int32)
  settings = Settings(temperature * one, none, one, 0 * one)
  found = []
  for r, (ids, budget) in enumerate(zip(*read(model, prompts, max_new_tokens), strict=True)):
    start, T = len(ids), pad_to_bucket(len(ids))
    tokens = np.zeros((1, T), np.int32)
    tokens[0, :start] = ids
    state = jax.device_get(
      write(
        model.target,
        model.params,
        jnp.asarray(tokens),
        jnp.int32(start),
        jnp.int32(start + budget),
        jnp.asarray(stop),
        jnp.asarray(breaks),
        settings,
        request_keys(seed, jnp.full(1, r)),
        jnp.float32(low),
        jnp.float32(high),
        trials=trials,
        capacity=-(-speculate.capacity_for(T, budget, 0) // 64) * 64,
      )._replace(cache=None)
    )
    if state.failed:
      raise FloatingPointError(f"prompt {r}: the logits of {model.name} became NaN.")
    new = slice(start, int(state.length))
    said = state.text[new].tolist()
    spoken = model.decode(said, ids)
    found.append(Cautious(said, spoken, state.trials[new].tolist(), int(state.drawn)))
  return found
