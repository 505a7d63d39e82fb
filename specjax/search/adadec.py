"""AdaDec: greedy decoding that looks ahead where the model is uncertain.

He et al. 2025 (arXiv 2506.08980). Where the entropy of the next token is high, each of the
likeliest candidates is continued greedily for a few tokens, and the candidate whose continuation
has the highest mean log-probability is taken. It has a law of its own, that of no verifier: no
draft is verified here. At an infinite threshold it is greedy decoding.

Letters: K candidates, S capacity of texts, T prompt length, M stop tokens, V vocabulary.
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
from specjax.sampling import likeliest


class Considered(NamedTuple):
  """A text: its new ids, their text, and for each id whether the decoder looked ahead for it."""

  tokens: list[int]
  text: str
  looked: list[bool]


class AdaDecState(NamedTuple):
  """What rides in the loop.

  Attributes:
    text: i32[1, S], the prompt included, of length i32[].
    looked: bool[S].
    done, failed: bool[]; failed where the logits were NaN.
  """

  cache: Cache
  text: Array
  length: Array
  looked: Array
  done: Array
  failed: Array


@functools.partial(jax.jit, static_argnames=("target", "candidates", "ahead", "capacity"))
def write(
  target: Target,
  params: Params,
  tokens: Array,
  length: Array,
  limit: Array,
  stop: Array,
  threshold: Array,
  *,
  candidates: int,
  ahead: int,
  capacity: int,
) -> AdaDecState:
  """The state after the text, from one prompt, tokens i32[1, T] of which length i32[] count."""
  K = candidates
  cache, _ = target.prefill(params, tokens, length[None], capacity)
  text = jnp.pad(tokens, ((0, 0), (0, capacity - tokens.shape[1])))
  no = jnp.bool(False)
  start = AdaDecState(cache, text, length, jnp.zeros(capacity, bool), no, no)

  def ends(tokens: Array) -> Array:
    return (tokens[:, None] == stop[None]).any(1)

  def looked(cache: Cache, log_p: Array) -> Array:
    """i32[], the candidate whose greedy continuation is the most likely per token."""
    first = likeliest(log_p, K)
    caches = jax.tree.map(lambda x: jnp.repeat(x, K, 0), cache)

    def go_on(_, carry):
      cache, token, total, count = carry
      live = ~ends(token)
      logits, cache = read_one(target, params, cache, token)
      log_p = jax.nn.log_softmax(logits)
      after = jnp.argmax(log_p, 1).astype(jnp.int32)
      more = jnp.take_along_axis(log_p, after[:, None], 1)[:, 0]
      total, count = total + jnp.where(live, more, 0.0), count + live.astype(jnp.float32)
      return cache, jnp.where(live, after, token), total, count

    begin = caches, first, log_p[first], jnp.ones(K)
    _, _, total, count = jax.lax.fori_loop(0, ahead, go_on, begin)
    return first[jnp.argmax(total / count)]

  def step(state: AdaDecState) -> AdaDecState:
    root = jax.lax.dynamic_slice_in_dim(state.text[0], state.length - 1, 1)
    logits, cache = read_one(target, params, state.cache, root)
    log_p = jax.nn.log_softmax(logits[0])
    entropy = -jnp.where(log_p > -jnp.inf, jnp.exp(log_p) * log_p, 0.0).sum()
    unsure, failed = entropy >= threshold, jnp.isnan(log_p).any()
    token = jax.lax.cond(unsure, looked, lambda cache, log_p: likeliest(log_p, 1)[0], cache, log_p)
    length = state.length + 1
    return AdaDecState(
      cache,
      state.text.at[0, state.length].set(token),
      length,
      state.looked.at[state.length].set(unsure),
      ends(token[None])[0] | (length >= limit) | failed,
      failed,
    )

  return jax.lax.while_loop(lambda state: ~state.done, step, start)


@switches.hold
def adadec(
  model: Model,
  prompts: Sequence[Prompt],
  threshold: float = 0.9,
  max_new_tokens: int | Sequence[int] = 128,
  *,
  candidates: int = 3,
  ahead: int = 5,
) -> list[Considered]:
  """Greedy decoding that looks ahead where the model is uncertain.

  Prompts are answered one after the other; see the head of this file.

  Measured: 30.0 % right (strategies)

  Args:
    model: causal.
    prompts: texts, or lists of ids.
    threshold: nats; it looks ahead where the entropy is this or more. The paper learns it for each
      model, as `adadec_threshold.learned_threshold` does, and finds 0.6 to 1.3.
    max_new_tokens: a budget for all, or one per prompt.
    candidates: K, the likeliest next tokens that are tried.
    ahead: tokens of each continuation, which ends earlier at a stop token.

  Raises:
    ValueError: a model that is not causal, or a number that is not accepted.
    FloatingPointError: the logits became NaN.
  """
  check_model(model, causal=True)
  checks.number("threshold", threshold, 0)
  checks.whole("candidates", candidates, 1, model.config.vocab_size)
  checks.whole("ahead", ahead, 1, 1024)
  found = []
  stop = jnp.asarray([*model.stop, -1], jnp.int32)
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
        stop,
        jnp.float32(threshold),
        candidates=candidates,
        ahead=ahead,
        capacity=-(-speculate.capacity_for(T, budget, ahead) // 64) * 64,
      )._replace(cache=None)
    )
    if state.failed:
      raise FloatingPointError(f"prompt {r}: the logits of {model.name} became NaN.")
    new = slice(start, int(state.length))
    said = state.text[0, new].tolist()
    found.append(Considered(said, model.decode(said, ids), state.looked[new].tolist()))
  return found
