"""The autoregressive loop: propose, evaluate, verify, commit, update, until every row is done.

Plain decoding is this loop with the empty drafter, so baselines share its sampling, stopping and
counting. Nothing returns to the host between rounds; a caller streams by calling `advance` with a
few rounds at a time. The letters of shapes are those of `specjax.base`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax import bucketing, checks
from specjax.base import (
  Context,
  Draft,
  Drafter,
  Evaluation,
  Params,
  Processor,
  Target,
  Verdict,
  Verifier,
)
from specjax.distributed import shard_batch, shard_nodes
from specjax.sampling import Noise, NoiseSource, Settings, warp
from specjax.trees.structure import ancestors, gather


class Method(NamedTuple):
  """What is fixed when the loop is compiled.

  `decoding.method.method` builds it, and checks that the verifier is exact for the draft.

  Attributes:
    narrow: the numbers of nodes, below N, for which a pass is compiled too; see
      `specjax.bucketing`.
  """

  target: Target
  drafter: Drafter
  verifier: Verifier
  processors: tuple[Processor, ...] = ()
  narrow: tuple[int, ...] = ()


class Weights(NamedTuple):
  """The parameters of a method; () for a drafter or verifier that has none."""

  target: Params
  drafter: Params
  verifier: Params = ()


class DecodeRequest(NamedTuple):
  """What each row asks for; all of it is traced.

  Attributes:
    settings: sampling settings, arrays [B].
    key: key[B], see `sampling.request_keys`.
    limit: i32[B], the committed length at which a row ends: prompt plus its token budget.
    stop: i32[M], tokens that end a row; the stop token is emitted. -1 matches nothing.
    processors: params of each of the method's processors.
  """

  settings: Settings
  key: Array
  limit: Array
  stop: Array
  processors: tuple[Params, ...] = ()


class Stats(NamedTuple):
  """What is counted per row, without the prefill.

  Attributes:
    passes: i32[B], target evaluations while the row was live.
    emitted: i32[B], new tokens, cut at stop tokens and budgets.
    accepted: i32[B, A], entry d counts the rounds that accepted d draft tokens (before cutting).
    offered: i32[B, A], entry d counts the rounds whose draft was d deep.
  """

  passes: Array
  emitted: Array
  accepted: Array
  offered: Array


NAN, INFINITE = -1, -2


class DecodeState(NamedTuple):
  """What rides in the loop.

  Attributes:
    context: the committed text, [B, capacity].
    drafter, processors: the states of the drafter and of each processor.
    log_probs: f32[B, capacity], nats, of each new token under the target itself, whatever the
      processors and the settings; 0 for the prompt.
    done: bool[B].
    failed: bool[B], rows that ended because there was nothing to draw a token from.
    why: i32[B], of a row that failed: `NAN` or `INFINITE` where the target's logits were; else bit
      i says that processor i forbade tokens, until none was left.
  """

  context: Context
  cache: Any
  drafter: Any
  processors: tuple[Any, ...]
  log_probs: Array
  done: Array
  failed: Array
  why: Array
  stats: Stats


def capacity_for(prompt_length: int, max_new_tokens: int, depth: int) -> int:
  """Cache length S that never clamps a write: prompt, budget and one accepted path."""
  return prompt_length + max_new_tokens + depth + 1


def start(
  method: Method,
  weights: Weights,
  tokens: Array,
  length: Array,
  request: DecodeRequest,
  capacity: int,
) -> DecodeState:
  """Prefills the prompts.

  Args:
    method: static.
    tokens: i32[B, T], padded on the right.
    length: i32[B], 1..T.
    capacity: S, static; at least `capacity_for` of the longest row.
  """
  context, cache, guesser = prefilled(method, weights, tokens, length, capacity)
  return ready(method, request, context, cache, guesser)


def prefilled(
  method: Method, weights: Weights, tokens: Array, length: Array, capacity: int
) -> tuple[Context, Any, Any]:
  """(context, the target's cache, the drafter's state) of prompts; see `start`."""
  target, drafter, *_ = method
  cache, features = target.prefill(
    weights.target, tokens, length, capacity, hidden_layers=drafter.hidden_layers
  )
  context = Context(jnp.pad(tokens, ((0, 0), (0, capacity - tokens.shape[1]))), length)
  guesser = drafter.init(
    weights.drafter,
    weights.target,
    context=context._replace(cache=cache),
    features=features,
    capacity=capacity,
  )
  return context, cache, guesser


def ready(
  method: Method, request: DecodeRequest, context: Context, cache: Any, guesser: Any
) -> DecodeState:
  """The state before the first round, of prompts that were read."""
  B, capacity = context.tokens.shape
  memories = begun(method.processors, request, context)
  zero, counts = jnp.zeros(B, jnp.int32), jnp.zeros((B, method.drafter.depth + 1), jnp.int32)
  return DecodeState(
    context,
    cache,
    guesser,
    memories,
    log_probs=jnp.zeros((B, capacity)),
    done=context.length >= request.limit,
    failed=jnp.zeros(B, bool),
    why=zero,
    stats=Stats(zero, zero, counts, counts),
  )


def begun(
  processors: tuple[Processor, ...], request: DecodeRequest, context: Context
) -> tuple[Any, ...]:
  """The states of the processors before the first round, of which `context` is the prompt."""
  pairs = zip(processors, request.processors, strict=True)
  return tuple(p.init(params, context, request.limit) for p, params in pairs)


def _first(flags: Array, more: int) -> Array:
  """i32[B]: index of the first True plus `more`, A + 1 where there is none. flags bool[B, A]."""
  index = jnp.argmax(flags, 1).astype(jnp.int32)
  return jnp.where(flags.any(1), index + more, flags.shape[1] + 1)


def _processed(
  method: Method,
  request: DecodeRequest,
  state: DecodeState,
  draft: Draft,
  mask: Array,
  logits: Array,
) -> tuple[Array, Array]:
  """(logits f32[B, N, V] after the processors; i32[B, N], `State.why` for a row that fails
  behind a node, 0 where none does).

  Where no token is left the logits are 0, for a node that is not reached must not be NaN.
  """
  why = jnp.zeros(logits.shape[:2], jnp.int32)
  if not method.processors:
    return logits, why
  each = zip(method.processors, request.processors, state.processors, strict=True)
  for i, (p, params, own) in enumerate(each):
    before, logits = logits, p.logits(params, own, draft=draft, mask=mask, logits=logits)
    forbids = (jnp.isfinite(before) & ~jnp.isfinite(logits)).any(-1)
    why |= forbids.astype(jnp.int32) << i
  best = logits.max(-1)
  greedy = request.settings.temperature[:, None] == 0  # takes a token of +inf
  left = (best > -jnp.inf) & (greedy | (best < jnp.inf))
  return jnp.where(left[..., None], logits, 0.0), jnp.where(left, 0, why)


def _counted(counts: Array, flags: Array) -> Array:
  """Counts i32[B, A] with those of a round, flags bool[B, A' <= A], whose draft may be smaller."""
  more = flags.astype(jnp.int32)
  short = counts.shape[1] - more.shape[1]
  return counts + (jnp.pad(more, ((0, 0), (0, short))) if short else more)


def guess(
  method: Method, weights: Weights, request: DecodeRequest, state: DecodeState, noise: NoiseSource
) -> tuple[Draft, Any, Evaluation, Array, Array]:
  """(draft, the drafter's state after it, evaluation, log_probs f32[B, N, V] to verify against,
  i32[B, N] as of `_processed`)."""
  target, drafter, _, _, widths = method
  draft, memory = drafter.propose(
    weights.drafter,
    weights.target,
    state.drafter,
    context=state.context._replace(cache=state.cache),
    settings=request.settings,
    noise=noise,
  )
  B, V = state.context.tokens.shape[0], target.vocab_size
  checks.arrays(f"the drafter {drafter.name!r}", draft, Draft, B=B, N=drafter.nodes, V=V)
  if widths:
    draft = bucketing.compact(draft, drafter.depth)
  draft = shard_batch(draft)
  mask = ancestors(draft.parent, drafter.depth)
  if drafter.evaluate is None:
    evaluation = bucketing.evaluate(
      target, weights.target, widths, state.cache, draft, mask, drafter.hidden_layers
    )
  else:
    evaluation = drafter.evaluate(
      weights.drafter, weights.target, memory, cache=state.cache, draft=draft, mask=mask
    )
  checks.arrays("the target", evaluation, Evaluation, B=B, N=draft.tokens.shape[1], V=V)
  evaluation = evaluation._replace(features=shard_batch(evaluation.features))
  logits, failed = _processed(method, request, state, draft, mask, evaluation.logits)
  return draft, memory, evaluation, shard_nodes(warp(logits, request.settings)), failed


def decode_round(
  method: Method,
  weights: Weights,
  request: DecodeRequest,
  state: DecodeState,
  source: Callable[..., NoiseSource],
) -> DecodeState:
  """Runs one round for all rows; finished rows stay as they are."""
  target, drafter, verifier, *_ = method
  processors = list(zip(method.processors, request.processors, state.processors, strict=True))
  context, stats, D = state.context, state.stats, drafter.depth
  noise = source(request.key, context.length)
  draft, drafter_state, evaluation, log_probs, failing = guess(
    method, weights, request, state, noise
  )
  verdict = verifier.verify(
    weights.verifier,
    draft,
    log_probs,
    evaluation.features,
    noise,
    depth=D,
    proposal=drafter.proposal,
  )
  checks.arrays(
    f"the verifier {verifier.name!r}", verdict, Verdict, B=context.length.shape[0], A=D + 1
  )
  verdict = shard_batch(verdict)

  # A row emits what was accepted, up to its first stop token, its budget, or a failure at an
  # accepted node: no token to draw, or logits that are not finite, which shows in their sum.
  live = ~state.done
  step = jnp.arange(D + 1, dtype=jnp.int32)[None]
  stops = (verdict.tokens[:, :, None] == request.stop[None, None]).any(-1)
  for p, params, own in processors:
    stops = stops | p.ends(params, own, tokens=verdict.tokens)
  until_stop = _first(stops & (step <= verdict.count[:, None]), 1)
  total = jax.nn.logsumexp(evaluation.logits, -1)
  failing = jnp.where(jnp.isinf(total), INFINITE, failing)
  failing = gather(jnp.where(jnp.isnan(total), NAN, failing), verdict.path)
  until_failure = _first(failing != 0, 0)
  emitted = jnp.minimum(jnp.minimum(verdict.count + 1, until_stop), request.limit - context.length)
  fails = live & (until_failure < emitted)
  failed = state.failed | fails
  first = jnp.take_along_axis(failing, jnp.minimum(until_failure, D)[:, None], 1)[:, 0]
  why = jnp.where(fails, first, state.why)
  emitted = jnp.where(live, jnp.minimum(emitted, until_failure), 0)
  length = context.length + emitted
  done = state.done | failed | (emitted == until_stop) | (length >= request.limit)

  cache = target.commit(state.cache, evaluation.kv, verdict.path, emitted)
  drafter_state = drafter.update(
    weights.drafter,
    weights.target,
    drafter_state,
    draft=draft,
    evaluation=evaluation,
    verdict=verdict,
    rows=emitted,
  )
  capacity = context.tokens.shape[1]
  column = jnp.where(step < emitted[:, None], context.length[:, None] + step, capacity)
  write = jax.vmap(lambda row, column, x: row.at[column].set(x, mode="drop"))
  text = write(context.tokens, column, verdict.tokens)
  # Each token's logit is read at every node before the path is followed: to take the path's rows
  # of logits first would copy them, on a mesh to every device.
  said = jnp.take_along_axis(evaluation.logits, verdict.tokens[:, None], -1) - total[..., None]
  said = jnp.take_along_axis(said, verdict.path[:, None], 1)[:, 0]
  log_probs = write(state.log_probs, column, said)
  memories = tuple(
    p.update(w, own, tokens=verdict.tokens, rows=emitted) for p, w, own in processors
  )

  deepest = jnp.where(draft.valid, draft.depth, 0).max(1, keepdims=True)
  stats = Stats(
    stats.passes + live.astype(jnp.int32),
    stats.emitted + emitted,
    _counted(stats.accepted, live[:, None] & (step == verdict.count[:, None])),
    _counted(stats.offered, live[:, None] & (step == deepest)),
  )
  return DecodeState(
    Context(text, length), cache, drafter_state, memories, log_probs, done, failed, why, stats
  )


def until_done(
  run: Callable[[Any], Any],
  done: Callable[[Any], Array],
  state: Any,
  rounds: Array,
  while_loop: Callable[..., Any] = jax.lax.while_loop,
) -> Any:
  """Repeats the round `run` until every row is `done` bool[B], `rounds` i32[] times at most."""

  def unfinished(carry) -> Array:
    i, state = carry
    return (i < rounds) & ~done(state).all()

  def body(carry):
    i, state = carry
    return i + 1, run(state)

  return while_loop(unfinished, body, (jnp.int32(0), state))[1]


def advance(
  method: Method,
  weights: Weights,
  request: DecodeRequest,
  state: DecodeState,
  rounds: Array,
  *,
  while_loop: Callable[..., Any] = jax.lax.while_loop,
  source: Callable[..., NoiseSource] = Noise,
) -> DecodeState:
  """Runs until every row is done, `rounds` i32[] rounds at most.

  Args:
    method, while_loop, source: static. `specjax.testing` passes a Python loop and a source that
      enumerates, and so proves the path that ships.
  """

  def run(state: DecodeState) -> DecodeState:
    return decode_round(method, weights, request, state, source)

  return until_done(run, lambda state: state.done, state, rounds, while_loop)


compiled_begun = jax.jit(begun, static_argnames="processors")
compiled_start = jax.jit(start, static_argnames=("method", "capacity"))
compiled_advance = jax.jit(
  advance, static_argnames=("method", "while_loop", "source"), donate_argnames="state"
)
