"""Two models of one vocabulary write a text in turns: the large one where the text is uncertain.

Entropy adaptive decoding, Simonds 2025 (arXiv 2502.06833). It is LOSSY: tokens of the small model
are kept unseen, so no draft is verified and the text has neither model's law. With a threshold of 0
all tokens but the first few are the large model's, as with an infinite one all are the small one's.

A model that is not asked reads nothing; when its turn comes it first reads what the other wrote, a
few tokens in a pass.

Letters: S capacity of texts, T prompt length, C tokens read in a pass, V vocabulary.
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
from specjax.models.cache import once, read_one, zero_after
from specjax.names.build.drafters import sharing
from specjax.names.load import Model, Prompt
from specjax.sampling import Noise, Settings, request_keys, warp

EXACTNESS = "LOSSY (the small model's tokens are not verified)"
CHUNK = 16  # C


class Switched(NamedTuple):
  """A text: its new ids, their text, and for each id whether the large model wrote it."""

  tokens: list[int]
  text: str
  large: list[bool]


class SwitchingState(NamedTuple):
  """What rides in the loop.

  Attributes:
    caches: of the small and the large model, each of the tokens that it has read.
    text: i32[1, S], the prompt included, of length i32[1].
    wrote: bool[S], whether the large model wrote a token.
    bits: f32[window], the newest entropies, those of the token last written first.
    large: bool[], whose turn it is; turn i32[] is how many tokens it has lasted.
    done: bool[].
  """

  caches: tuple[Cache, Cache]
  text: Array
  length: Array
  wrote: Array
  bits: Array
  large: Array
  turn: Array
  done: Array


def _read(target: Target, params: Params, cache: Cache, text: Array, length: Array):
  """(logits f32[1, V] after the text of length i32[1], the cache that has all of it)."""
  step = jnp.arange(CHUNK, dtype=jnp.int32)[None]
  mask = jnp.tril(jnp.ones((1, CHUNK, CHUNK), bool))

  def unread(cache: Cache, nodes: int) -> Array:
    return jnp.take_along_axis(text, cache.length[:, None] + step[:, :nodes], 1)

  def behind(cache: Cache) -> Array:
    return (length - cache.length)[0] > 1

  def catch_up(cache: Cache) -> Cache:
    evaluation = target.evaluate(params, cache, unread(cache, CHUNK), step, mask)
    rows = jnp.minimum(CHUNK, length - 1 - cache.length)
    return target.commit(cache, evaluation.kv, step, rows + zero_after(evaluation.logits[:, 0, 0]))

  cache = jax.lax.while_loop(behind, catch_up, cache)
  return read_one(target, params, cache, unread(cache, 1)[:, 0])


@functools.partial(jax.jit, static_argnames=("targets", "capacity", "window"))
def write(
  targets: tuple[Target, Target],
  params: tuple[Params, Params],
  tokens: Array,
  length: Array,
  limit: Array,
  stop: Array,
  settings: Settings,
  key: Array,
  threshold: Array,
  dwell: Array,
  *,
  capacity: int,
  window: int,
) -> SwitchingState:
  """The state after the text, from one prompt, tokens i32[1, T] of which length i32[1] count.

  See `switching` for the other arguments; targets and params are those of the small model first.
  """
  caches = tuple(
    t.prefill(p, tokens, length, capacity)[0] for t, p in zip(targets, params, strict=True)
  )
  text = jnp.pad(tokens, ((0, 0), (0, capacity - tokens.shape[1])))
  start = SwitchingState(
    (caches[0], caches[1]),
    text,
    length,
    jnp.zeros(capacity, bool),
    jnp.zeros(window),
    jnp.bool(False),
    jnp.int32(0),
    jnp.bool(False),
  )

  def asked(i: int, turn: Array, state: SwitchingState, logits: Array) -> tuple[Array, Cache]:
    """(the logits of model i, its cache that has the text) in its turn; else as they were."""

    def run(carry: tuple[Array, Cache]) -> tuple[Array, Cache]:
      return _read(targets[i], params[i], carry[1], state.text, state.length)

    return once(turn, run, (logits, state.caches[i]))

  def step(state: SwitchingState) -> SwitchingState:
    nothing = jnp.zeros((1, targets[0].vocab_size), jnp.float32)
    logits, small = asked(0, ~state.large, state, nothing)
    logits, large = asked(1, state.large, state, logits)
    caches = small, large
    log_p = jax.nn.log_softmax(logits[0].astype(jnp.float32)) / jnp.log(2.0)
    entropy = -jnp.where(log_p > -jnp.inf, jnp.exp2(log_p) * log_p, 0.0).sum()
    bits = jnp.roll(state.bits, 1).at[0].set(entropy)
    log_probs = warp(logits[:, None], settings)
    token = Noise(key, state.length).choose(log_probs, jnp.zeros((1, 1), jnp.int32))[0, 0]
    text = state.text.at[0, state.length[0]].set(token)
    wrote = state.wrote.at[state.length[0]].set(state.large)
    turn, length = state.turn + 1, state.length + 1
    known = jnp.minimum(length[0] - start.length[0], window)
    mean = jnp.where(jnp.arange(window) < known, bits, 0.0).sum() / known.astype(jnp.float32)
    other = (turn >= dwell) & ((mean >= threshold) != state.large)
    return SwitchingState(
      caches,
      text,
      length,
      wrote,
      bits,
      state.large ^ other,
      jnp.where(other, 0, turn),
      (token == stop).any() | (length[0] >= limit) | jnp.isnan(entropy),
    )

  return jax.lax.while_loop(lambda state: ~state.done, step, start)


@switches.hold
def switching(
  small: Model,
  large: Model,
  prompts: Sequence[Prompt],
  threshold: float = 1.0,
  max_new_tokens: int | Sequence[int] = 128,
  *,
  window: int = 5,
  dwell: int = 10,
  temperature: float = 0.0,
  seed: int = 0,
) -> list[Switched]:
  """LOSSY: two models write in turns, the large one where the text is uncertain.

  Prompts are answered one after the other; see the head of this file.

  Args:
    small, large: causal models of one vocabulary; the small one begins.
    prompts: texts, or lists of ids.
    threshold: bits; the large model writes where the mean entropy of the last tokens, at
      temperature 1, each under the model that wrote it, is this or more.
    max_new_tokens: a budget for all, or one per prompt.
    window: tokens of the mean.
    dwell: the least tokens of a turn.
    temperature: 0 takes the likeliest token.
    seed: of the noise; prompt r has that of request r of a `Decoder`.

  Raises:
    ValueError: models of two vocabularies, or a number that is not accepted.
    FloatingPointError: the logits became NaN.
  """
  check_model(small, causal=True)
  check_model(large, causal=True)
  small = sharing(large, small, f"small={small.name!r} with large={large.name!r}")
  checks.number("threshold", threshold, 0)
  checks.whole("window", window, 1, 10**4)
  checks.whole("dwell", dwell, 1)
  checks.number("temperature", temperature, 0, note="0 is greedy")
  checks.whole("seed", seed, 0, checks.SEED)
  read(small, prompts, max_new_tokens)  # its positions count too
  one, none = jnp.ones(1), jnp.zeros(1, jnp.int32)
  settings = Settings(temperature * one, none, one, 0 * one)
  stop = jnp.asarray([*large.stop, -1], jnp.int32)
  found = []
  for r, (ids, budget) in enumerate(zip(*read(large, prompts, max_new_tokens), strict=True)):
    start, T = len(ids), pad_to_bucket(len(ids))
    tokens = np.zeros((1, T), np.int32)
    tokens[0, :start] = ids
    state = jax.device_get(
      write(
        (small.target, large.target),
        (small.params, large.params),
        jnp.asarray(tokens),
        jnp.full(1, start, jnp.int32),
        jnp.int32(start + budget),
        stop,
        settings,
        request_keys(seed, jnp.full(1, r)),
        jnp.float32(threshold),
        jnp.int32(dwell),
        capacity=-(-speculate.capacity_for(T, budget, CHUNK) // 64) * 64,
        window=window,
      )._replace(caches=None)
    )
    if np.isnan(state.bits).any():
      raise FloatingPointError(f"prompt {r}: the logits of a model became NaN.")
    new = slice(start, int(state.length[0]))
    said = state.text[0, new].tolist()
    found.append(Switched(said, large.decode(said, ids), state.wrote[new].tolist()))
  return found
