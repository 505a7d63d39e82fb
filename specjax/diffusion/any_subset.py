"""Any-subset speculative decoding: slots filled in any order, several in two passes, exactly.

ASSD (Guo and Ermon 2025, arXiv 2504.20456). A network that knows the distribution of a slot given
any others is its own draft model. One pass gives the distributions q of the next ranks given the
known slots alone, from which tokens are drawn as if they were independent. A second pass gives the
distribution p of each rank given the drawn tokens of lower rank too, by which they are verified.

One round, for a row in which 4 slots of 7 are known and k = 3 are guessed:

    canvas   the cat ___ on  ___ mat ___       ranks of the empty slots: 2, 0, 1
    draft    the cat a   on  the mat .         a, the, and . drawn from q, each given the 4
    joint        p of rank 1 given "the", of rank 2 given "the" and ".", one pass
    accept   "the" always, since its p is q; then "." and "a", one after the other, while u q < p;
             the first that fails is drawn anew from norm(max(p - q, 0)), what follows is dropped

Where none fails, the joint pass gives the distribution of the rank after the last as well, and a
token is drawn from it, which the published code does not do. A round fills two slots at least, or
the last one in one pass, so there are never more passes than slots.

EXACT: texts have the distribution of plain decoding, one slot after the other in the same order.
Noise depends on the request and the rank a round begins at, so a row's text is the same in any
batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.diffusion.base import Canvas
from specjax.sampling import DRAFT, Noise, NoiseSource, Settings, warp
from specjax.speculate import until_done
from specjax.trees import structure
from specjax.verifiers import chain


class AnyOrder(NamedTuple):
  """A model of every slot given any others, as pure functions. `params` is a pytree of its own.

  Both functions take (params, tokens i32[B, L], known bool[B, L], rank i32[B, L]) and return
  log-probabilities f32[B, L, V]; those of known slots mean nothing, but are not NaN.

  `rank` is -1 in slots that were given, then 0, 1, .. in the order of filling; slots that do not
  take part have L. `known` are all slots below some rank; tokens elsewhere are not read.
  A distribution may depend on the order in which the known slots were filled, but on nothing else:
  for the lowest unknown rank, `draft` and `joint` give the same.

  Attributes:
    draft: every slot's distribution given the known ones alone.
    joint: every slot's distribution given the known ones and all of lower rank than its own.
  """

  draft: Callable[..., Array]
  joint: Callable[..., Array]


class AnySubsetRequest(NamedTuple):
  """What each row asks for; traced.

  Attributes:
    settings: sampling settings, arrays [B].
    key: key[B], see `sampling.request_keys`.
    stop: i32[M], tokens that end a text where slots are filled from left to right: what lies behind
      the first that is filled is left out. None for a text that is filled to its end.
  """

  settings: Settings
  key: Array
  stop: Array | None = None


class AnySubsetState(NamedTuple):
  """What rides in the loop.

  Attributes:
    tokens: i32[B, L].
    rank: i32[B, L], see `AnyOrder`. Slots whose rank is below `filled` are known.
    filled: i32[B], slots filled so far.
    total: i32[B], slots to fill, the filled ones included.
    end: i32[B], the slot after the text's last.
    passes: i32[B], of the model while the row was live.
    when: i32[B, L], the round that filled a slot; -1 for slots that were given or are empty.
    log_prob: f32[B, L], nats, of each filled token under the model given the slots filled before
      it, without the settings; 0 elsewhere.
  """

  tokens: Array
  rank: Array
  filled: Array
  total: Array
  end: Array
  passes: Array
  when: Array
  log_prob: Array


def start(canvas: Canvas, order: Array) -> AnySubsetState:
  """The state before the first round.

  Args:
    canvas: masked slots before `end` are filled, whatever they hold.
    order: i32[B, L], the lowest first; ties from left to right. All equal is the paper's order.
  """
  B, L = canvas.tokens.shape
  todo = canvas.masked & canvas.inside
  slots = jnp.lexsort((order, ~todo), axis=-1)
  place = jnp.argsort(slots, axis=-1).astype(jnp.int32)
  rank, zero = jnp.where(todo, place, jnp.where(canvas.inside, -1, L)), jnp.zeros(B, jnp.int32)
  tokens, total = jnp.where(todo, 0, canvas.tokens), todo.sum(1, dtype=jnp.int32)
  when, log_prob = jnp.full((B, L), -1, jnp.int32), jnp.zeros((B, L))
  return AnySubsetState(
    tokens, rank, zero, total, canvas.end, passes=zero, when=when, log_prob=log_prob
  )


def round_(
  model: AnyOrder,
  params: Params,
  request: AnySubsetRequest,
  state: AnySubsetState,
  guesses: int,
  noise: NoiseSource,
) -> AnySubsetState:
  """Two passes, one where a single slot is left; finished rows stay as they are."""
  tokens, rank, filled, total, end, passes, when, log_prob = state
  B, L = tokens.shape
  row, left, known = jnp.arange(B)[:, None], total - filled, rank < filled[:, None]
  step = jnp.arange(guesses + 1, dtype=jnp.int32)[None]
  by_rank = jnp.argsort(jnp.where(rank < 0, L, rank), axis=1)
  slots = jnp.take_along_axis(by_rank, jnp.minimum(filled[:, None] + step, L - 1), 1)
  column = jnp.where(step < left[:, None], slots, L)  # L is nowhere

  said = model.draft(params, tokens, known, rank)[row, slots[:, :-1]]
  q = warp(said, request.settings)
  drafted = jnp.stack([noise.draw(DRAFT + j, q[:, j]) for j in range(guesses)], 1)
  guessed = tokens.at[row, column[:, :-1]].set(drafted, mode="drop")
  # Row i is the distribution of the slot after guess i.
  given = jax.lax.cond(
    (left > 1).any(),
    lambda: model.joint(params, guessed, known, rank)[row, slots[:, 1:]],
    lambda: jnp.zeros_like(q),
  )
  p = warp(given, request.settings)

  # The root of the chain is the first guess, which is accepted in any case.
  after = jnp.pad(q[:, 1:], ((0, 0), (0, 1), (0, 0)), constant_values=-jnp.inf)
  draft = structure.chain(drafted, step[:, :-1] < jnp.maximum(left, 1)[:, None], after)
  verdict = chain.accept_until_rejection(draft, p, chain.coins(draft, p, noise), noise, "chain")
  emitted = jnp.minimum(verdict.count + 2, left)
  new = jnp.concatenate([drafted[:, :1], verdict.tokens], 1)
  if request.stop is not None:
    ends = (new[..., None] == request.stop[None, None]).any(-1) & (step < emitted[:, None])
    first, found = jnp.argmax(ends, 1).astype(jnp.int32), ends.any(1)
    emitted = jnp.where(found, first + 1, emitted)
    total = jnp.where(found, filled + emitted, total)
    end = jnp.where(found, jnp.take_along_axis(slots, first[:, None], 1)[:, 0] + 1, end)
  column = jnp.where(jnp.arange(guesses + 1)[None] < emitted[:, None], column, L)
  used = jnp.minimum(left, 2)  # a finished row needs no pass, the last slot no joint pass
  own = jnp.concatenate([said[:, :1], given], 1)
  own = jnp.take_along_axis(own, new[..., None], -1)[..., 0]
  return AnySubsetState(
    tokens.at[row, column].set(new, mode="drop"),
    rank,
    filled + emitted,
    total,
    end,
    passes + used,
    when.at[row, column].set(passes[:, None] // 2, mode="drop"),  # all rounds before took two
    log_prob.at[row, column].set(own, mode="drop"),
  )


def advance(
  model: AnyOrder,
  params: Params,
  request: AnySubsetRequest,
  state: AnySubsetState,
  rounds: Array,
  *,
  guesses: int = 5,
  while_loop: Callable[..., Any] = jax.lax.while_loop,
  source: Callable[..., NoiseSource] = Noise,
) -> AnySubsetState:
  """EXACT: drafts slots as if independent, and verifies them in a second pass.

  They are filled from left to right until none is left, or the text has ended.

  Measured: 3.2 passes for 6.0 (any_subset)
  Train: python -m specjax.train.denoiser --start lists-3m --any-order --data lists:1:40000 --out
  runs/any-order --length 24 --steps 200

  Args:
    rounds: i32[], rounds at most.
    model, guesses, while_loop, source: static. `guesses` is k >= 1, published 5; with 1 there are
      as many passes as slots, as in plain decoding.
  """

  def run(state: AnySubsetState) -> AnySubsetState:
    return round_(model, params, request, state, guesses, source(request.key, state.filled))

  return until_done(run, lambda state: state.filled >= state.total, state, rounds, while_loop)


compiled_start = jax.jit(start)
compiled_advance = jax.jit(
  advance, static_argnames=("model", "guesses", "while_loop", "source"), donate_argnames="state"
)
