"""The denoising loop: evaluate, predict, select, commit, until no row has a masked slot left.

Rows are independent: each has its own block, end and noise, so a batch of N gives what N batches of
one give. Thresholds are arrays in `Weights`: changing them, or giving every row its own, compiles
nothing anew.

Letters: B batch, L canvas length, W window, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import (
  Blocks,
  Cache,
  Canvas,
  Denoiser,
  Params,
  Policy,
  Prediction,
  Stopping,
  Transform,
)
from specjax.trees.structure import rows_where


class Method(NamedTuple):
  """What is fixed when the loop is compiled."""

  denoiser: Denoiser
  cache: Cache
  policy: Policy
  blocks: Blocks
  stopping: Stopping
  transforms: tuple[Transform, ...] = ()


class Weights(NamedTuple):
  """The parameters of a method; () for a part that has none."""

  denoiser: Params
  policy: Params = ()
  blocks: Params = ()
  stopping: Params = ()
  transforms: tuple[Params, ...] = ()


class Request(NamedTuple):
  """What each row asks for; traced.

  Attributes:
    key: key[B], see `sampling.request_keys`.
    temperature: f32[B]. 0 takes the argmax.
  """

  key: Array
  temperature: Array


class State(NamedTuple):
  """What rides in the loop.

  Attributes:
    canvas: Canvas.
    lo, hi: i32[B], the block.
    step: i32[B], rounds spent in the block.
    cache: the state of the cache.
    memory: the policy's.
    transforms: the memory of each transform.
    forwards: i32[B], passes of the denoiser while the row was live.
    when: i32[B, L], the round that committed a slot; -1 for slots that were given, are masked, or
      were filled after the text's end.
    log_prob: f32[B, L], nats: of what was committed, then; 0 elsewhere.
    done: bool[B].
  """

  canvas: Canvas
  lo: Array
  hi: Array
  step: Array
  cache: Any
  memory: Any
  transforms: tuple[Any, ...]
  forwards: Array
  when: Array
  log_prob: Array
  done: Array


def _first_masked(canvas: Canvas) -> Array:
  """i32[B]: the first slot to fill, the end where there is none."""
  inside = jnp.arange(canvas.tokens.shape[1], dtype=jnp.int32)[None] < canvas.end[:, None]
  todo = canvas.masked & inside
  return jnp.where(todo.any(1), jnp.argmax(todo, 1).astype(jnp.int32), canvas.end)


def _size(method: Method) -> tuple[int, int]:
  """(W, V)."""
  return method.blocks.window, method.denoiser.vocab_size


def start(method: Method, weights: Weights, canvas: Canvas) -> State:
  """The state before the first round.

  Args:
    method: static.
    canvas: its length L reaches W slots past every end, so that no window leaves it.
  """
  B, L = canvas.tokens.shape
  tokens = jnp.where(canvas.masked, method.denoiser.mask, canvas.tokens)
  canvas = canvas._replace(tokens=tokens)
  lo, zero = _first_masked(canvas), jnp.zeros(B, jnp.int32)
  return State(
    canvas=canvas, lo=lo, hi=lo, step=zero,
    cache=method.cache.init(weights.denoiser, canvas),
    memory=method.policy.init(B, *_size(method)),
    transforms=tuple(t.init(B, *_size(method)) for t in method.transforms),
    forwards=zero, when=jnp.full((B, L), -1, jnp.int32), log_prob=jnp.zeros((B, L)),
    done=lo >= canvas.end,
  )  # fmt: skip


def predict(logits: Array, request: Request, position: Array, forwards: Array) -> Prediction:
  """The window's statistics, of logits f32[B, W, V]; what depends on the block is left empty.

  The noise of a slot depends on its request and position only, so that a slot is drawn alike in
  whatever round it is committed.
  """
  log_probs = jax.nn.log_softmax(logits)
  probs = jnp.exp(log_probs)

  def drawn(_) -> Array:
    def slot(key, position, row):
      return row + jax.random.gumbel(jax.random.fold_in(key, position), row.shape)

    temperature = jnp.where(request.temperature > 0, request.temperature, 1.0)[:, None, None]
    noisy = jax.vmap(jax.vmap(slot, (None, 0, 0)))(request.key, position, logits / temperature)
    return jnp.argmax(noisy, -1).astype(jnp.int32)

  best = jnp.argmax(logits, -1).astype(jnp.int32)
  hot = request.temperature > 0
  token = jnp.where(hot[:, None], jax.lax.cond(hot.any(), drawn, lambda _: best, None), best)
  top = jax.lax.top_k(probs, 2)[0]
  entropy = -jnp.where(probs > 0, probs * log_probs, 0.0).sum(-1)
  confidence = jnp.take_along_axis(probs, token[..., None], -1)[..., 0]
  fold = jax.vmap(jax.random.fold_in)
  rounds = fold(fold(request.key, jnp.full_like(forwards, -1)), forwards)  # apart from the slots'
  uniform = jax.vmap(lambda k: jax.random.uniform(k, position.shape[1:]))(rounds)
  nothing = jnp.zeros(position.shape, bool)
  return Prediction(
    token, confidence, entropy, top[..., 0] - top[..., 1], log_probs, position, nothing, nothing,
    nothing, forwards, uniform,
  )  # fmt: skip


def read(method: Method, weights: Weights, state: State) -> tuple[Array, State]:
  """One pass: the window's states [B, W, E], and the state with the new cache."""
  fresh = (state.step == 0) & ~state.done
  states, cache = method.cache.states(weights.denoiser, state.cache, state.canvas, state.lo, fresh)
  return states, state._replace(cache=cache)


def act(method: Method, weights: Weights, request: Request, state: State, states: Array) -> State:
  """Commits what the policy chooses by the window's states; finished rows stay as they are."""
  denoiser, _, policy, blocks, stopping, transforms = method
  canvas, live = state.canvas, ~state.done
  B, W = len(live), blocks.window
  fresh = state.step == 0
  row = jnp.arange(B)[:, None]

  position = state.lo[:, None] + jnp.arange(W, dtype=jnp.int32)[None]
  masked = canvas.masked[row, position] & (position < canvas.end[:, None])
  logits = denoiser.head(weights.denoiser, states)
  logits = jnp.where(jnp.arange(logits.shape[-1])[None, None] == denoiser.mask, -jnp.inf, logits)
  memories = []
  for t, params, own in zip(transforms, weights.transforms, state.transforms, strict=True):
    logits, own = t.apply(params, own, logits, masked, state.step)
    memories.append(own)
  prediction = predict(logits, request, position, state.forwards)
  prediction = prediction._replace(masked=masked, open=masked, step=state.step)
  hi = jnp.where(fresh, state.lo + blocks.size(weights.blocks, prediction), state.hi)
  hi = jnp.minimum(hi, canvas.end)
  open_ = masked & (position < hi[:, None])
  prediction = prediction._replace(open=open_, block=position < hi[:, None])

  commit, score, memory = policy.select(weights.policy, state.memory, prediction)
  best = jnp.argmax(jnp.where(open_, score, -jnp.inf), 1)[:, None]
  # Where all scores are -inf, the first open slot.
  best = jnp.where(open_[row, best], best, jnp.argmax(open_, 1)[:, None])
  commit = commit & masked & live[:, None]
  forced = (jnp.arange(W)[None] == best) & ~(commit & open_).any(1, keepdims=True)
  commit = commit | (forced & open_ & live[:, None])

  column = jnp.where(commit, position, canvas.tokens.shape[1])
  canvas = canvas._replace(
    tokens=canvas.tokens.at[row, column].set(prediction.token, mode="drop"),
    masked=canvas.masked.at[row, column].set(False, mode="drop"),
  )
  when = state.when.at[row, column].set(
    jnp.broadcast_to(state.forwards[:, None], (B, W)), mode="drop"
  )
  log_prob = state.log_prob.at[row, column].set(jnp.log(prediction.confidence), mode="drop")

  full = ~(open_ & ~commit).any(1)
  canvas = rows_where(
    live, stopping.end(weights.stopping, canvas, prediction, commit, full), canvas
  )
  full = ~(open_ & canvas.masked[row, position] & (position < canvas.end[:, None])).any(1)
  following = _first_masked(canvas)
  begun = (policy.init(B, *_size(method)), tuple(t.init(B, *_size(method)) for t in transforms))
  memory, remembered = rows_where(full, begun, (memory, tuple(memories)))
  return State(
    canvas=canvas, lo=jnp.where(live & full, following, state.lo), hi=hi,
    step=jnp.where(live, jnp.where(full, 0, state.step + 1), state.step), cache=state.cache,
    memory=memory, transforms=remembered, forwards=state.forwards + live.astype(jnp.int32),
    when=when, log_prob=log_prob, done=state.done | (live & (following >= canvas.end)),
  )  # fmt: skip


def round_(method: Method, weights: Weights, request: Request, state: State) -> State:
  """One pass, and the commits that follow from it."""
  states, state = read(method, weights, state)
  return act(method, weights, request, state, states)


def advance(
  method: Method, weights: Weights, request: Request, state: State, rounds: Array,
  *, while_loop: Callable[..., Any] = jax.lax.while_loop,
) -> State:  # fmt: skip
  """Runs until every row is done, `rounds` i32[] rounds at most. `method`, `while_loop`: static."""

  def unfinished(carry) -> Array:
    i, state = carry
    return (i < rounds) & ~state.done.all()

  def body(carry):
    i, state = carry
    return i + 1, round_(method, weights, request, state)

  return while_loop(unfinished, body, (jnp.int32(0), state))[1]


compiled_start = jax.jit(start, static_argnames="method")
compiled_advance = jax.jit(
  advance, static_argnames=("method", "while_loop"), donate_argnames="state"
)
