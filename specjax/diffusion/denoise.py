"""The denoising loop: evaluate, predict, select, change, until no row has a masked slot left.

Rows are independent: each has its own block, end and noise, so a batch of N gives what N batches of
one give. Thresholds are arrays in `Weights`: changing them, or giving every row its own, compiles
nothing anew.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion import base
from specjax.diffusion.base import Canvas, Parameter, Params, Prediction
from specjax.diffusion.blocks import check_blocks
from specjax.diffusion.change import applied, decided, may_be_open
from specjax.diffusion.draws import draw, kept, noise, tempered
from specjax.diffusion.groups import by_groups, groups_of
from specjax.sampling import Settings
from specjax.speculate import until_done
from specjax.trees.structure import rows_where


class DenoiseMethod(NamedTuple):
  """What is fixed when the loop is compiled.

  `tempered` says that policies are told of the distributions that tokens are drawn from.
  """

  denoiser: base.Denoiser
  cache: base.CanvasCache
  policy: base.Policy
  blocks: base.Blocks
  stopping: base.Stopping
  transforms: tuple[base.Transform, ...] = ()
  draws: base.Draws = kept()
  tempered: bool = False


class Weights(NamedTuple):
  """The parameters of a method; () for a part that has none."""

  denoiser: Params
  policy: Params = ()
  blocks: Params = ()
  stopping: Params = ()
  transforms: tuple[Params, ...] = ()


class DenoiseRequest(NamedTuple):
  """What each row asks for; traced.

  Attributes:
    key: key[B], see `sampling.request_keys`.
    temperature: f32[B]. 0 takes the argmax.
    top_k, top_p, min_p, typical_p: arrays [B], see `sampling.Settings`.
  """

  key: Array
  temperature: Array
  top_k: Parameter = 0
  top_p: Parameter = 1.0
  min_p: Parameter = 0.0
  typical_p: Parameter = 1.0

  @property
  def settings(self) -> Settings:
    """The settings of each row; what was left at its default is the same for all."""

    def rows(x: Parameter, kind: Any) -> Array:
      return jnp.broadcast_to(jnp.asarray(x, kind), self.temperature.shape)

    f32 = jnp.float32
    return Settings(
      self.temperature,
      rows(self.top_k, jnp.int32),
      rows(self.top_p, f32),
      rows(self.min_p, f32),
      rows(self.typical_p, f32),
    )


class DenoiseState(NamedTuple):
  """What rides in the loop.

  Attributes:
    lo, hi: i32[B], the block: its first slot, and the one after its last.
    step: i32[B], rounds spent in the block.
    cache, memory, transforms: what the cache, the policy and each transform keep.
    passes: i32[B], passes of the denoiser while the row was live.
    when: i32[B, L], the round that committed a slot, or replaced its token; -1 for slots that were
      given, are masked, or were filled after the text's end.
    log_prob: f32[B, L], nats at temperature 1, of each committed token in the round of `when`; 0
      elsewhere.
    done: bool[B].
  """

  canvas: Canvas
  lo: Array
  hi: Array
  step: Array
  cache: Any
  memory: Any
  transforms: tuple[Any, ...]
  passes: Array
  when: Array
  log_prob: Array
  done: Array


def _first_masked(canvas: Canvas) -> Array:
  """i32[B]: the first slot to fill, the end where there is none."""
  todo = canvas.masked & canvas.inside
  return jnp.where(todo.any(1), jnp.argmax(todo, 1).astype(jnp.int32), canvas.end)


def _next_block(method: DenoiseMethod, canvas: Canvas) -> Array:
  """i32[B]: where the next block begins; the end where nothing is left to fill.

  That is the first masked slot. Where the denoiser is causal over blocks, it is the first slot of
  the block which holds that, so that the window crosses none of the denoiser's blocks.
  """
  first = _first_masked(canvas)
  if method.denoiser.block is None:
    return first
  return jnp.where(first < canvas.end, first - first % method.blocks.window, first)


def _memories(method: DenoiseMethod, B: int) -> tuple[Any, tuple[Any, ...]]:
  """The memories of the policy and of each transform with which a row begins."""
  shape = B, method.blocks.window, method.denoiser.vocab_size
  return method.policy.init(*shape), tuple(t.init(*shape) for t in method.transforms)


def start(method: DenoiseMethod, weights: Weights, canvas: Canvas) -> DenoiseState:
  """The state before the first round.

  Args:
    method: static.
    canvas: its length L must reach W slots past every end, so that no window leaves it. Its masked
      slots get the mask token, or hold the first noise where that is uniform, see `draws.noise`.

  Raises:
    ValueError: blocks that cross those of the denoiser.
  """
  check_blocks(method.denoiser, method.blocks, method.policy)
  B, L = canvas.tokens.shape
  denoiser = method.denoiser
  if denoiser.mask is not None:
    canvas = canvas._replace(tokens=jnp.where(canvas.masked, denoiser.mask, canvas.tokens))
  if denoiser.soften is not None:
    one = jax.ShapeDtypeStruct((B, L, denoiser.vocab_size), jnp.float32)
    soft = jax.eval_shape(denoiser.soften, weights.denoiser, one, canvas.end)
    canvas = canvas._replace(soft=jnp.zeros(soft.shape, soft.dtype))
  if method.cache.asks:
    canvas = canvas._replace(sure=jnp.zeros((B, L)))
  lo, zero = _next_block(method, canvas), jnp.zeros(B, jnp.int32)
  memory, transforms = _memories(method, B)
  return DenoiseState(
    canvas=canvas,
    lo=lo,
    hi=lo,
    step=zero,
    cache=method.cache.init(weights.denoiser, canvas),
    memory=memory,
    transforms=transforms,
    passes=zero,
    when=jnp.full((B, L), -1, jnp.int32),
    log_prob=jnp.zeros((B, L)),
    done=lo >= canvas.end,
  )


def _of(values: Array, token: Array) -> Array:
  """[B, W]: of values [B, W, V] those of tokens i32[B, W]."""
  return jnp.take_along_axis(values, token[..., None], -1)[..., 0]


class Said(NamedTuple):
  """What logits say of slots; the fields are those of `Prediction` but for the last.

  Attributes:
    own: f32[B, W, V], log-probabilities at temperature 1.
  """

  token: Array
  likeliest: Array
  confidence: Array
  entropy: Array
  margin: Array
  log_probs: Array
  own: Array


def _said(
  method: DenoiseMethod, logits: Array, request: DenoiseRequest, position: Array, passes: Array
) -> Said:
  """What logits f32[B, W, V] say of the slots at `position` i32[B, W], in round `passes` i32[B]."""
  own = jax.nn.log_softmax(logits)
  log_probs = tempered(logits, request.settings) if method.tempered else own
  probs = jnp.exp(log_probs)

  def drawn(_) -> Array:
    warped = log_probs if method.tempered else tempered(logits, request.settings)
    return draw(method.draws, request.key, passes, position, warped)

  best = jnp.argmax(logits, -1).astype(jnp.int32)
  hot = request.temperature > 0
  token = jnp.where(hot[:, None], jax.lax.cond(hot.any(), drawn, lambda _: best, None), best)
  top = jax.lax.top_k(probs, 2)[0]
  entropy = -jnp.where(probs > 0, probs * log_probs, 0.0).sum(-1)
  confidence = _of(probs, token)
  return Said(token, best, confidence, entropy, top[..., 0] - top[..., 1], log_probs, own)


def _predict(
  said: Said, request: DenoiseRequest, position: Array, masked: Array, state: DenoiseState
) -> Prediction:
  """The prediction for the window, whose masked slots all count as open."""
  fold = jax.vmap(jax.random.fold_in)
  # The keys of rounds differ from those of slots.
  rounds = fold(fold(request.key, jnp.full_like(state.passes, -1)), state.passes)
  uniform = jax.vmap(lambda k: jax.random.uniform(k, position.shape[1:]))(rounds)
  return Prediction(
    said.token,
    said.confidence,
    said.entropy,
    said.margin,
    said.log_probs,
    position,
    masked,
    masked,
    jnp.ones_like(masked),
    state.step,
    uniform,
    jnp.take_along_axis(state.when, position, 1) >= 0,
    state.canvas.tokens,
    said.likeliest,
  )


def read(
  method: DenoiseMethod, weights: Weights, state: DenoiseState
) -> tuple[Array, DenoiseState]:
  """One pass: the window's states [B, W, E], and the state with the new cache."""
  fresh = (state.step == 0) & ~state.done
  states, cache = method.cache.states(weights.denoiser, state.cache, state.canvas, state.lo, fresh)
  return states, state._replace(cache=cache)


def act(
  method: DenoiseMethod,
  weights: Weights,
  request: DenoiseRequest,
  state: DenoiseState,
  states: Array,
) -> DenoiseState:
  """Changes what the policy chooses by the window's states; finished rows stay as they are."""
  denoiser, _, policy, blocks, stopping, transforms, *_ = method
  canvas, live = state.canvas, ~state.done
  B, W = len(live), blocks.window
  row = jnp.arange(B)[:, None]

  position = state.lo[:, None] + jnp.arange(W, dtype=jnp.int32)[None]
  masked = canvas.masked[row, position] & (position < canvas.end[:, None])

  def look(states: Array, position: Array, masked: Array) -> tuple[Said, Any, Any]:
    """(what is said of slots, their soft embeddings, the memories of the transforms)."""
    logits = denoiser.head(weights.denoiser, states)
    if denoiser.mask is not None:
      never = jnp.arange(logits.shape[-1])[None, None] == denoiser.mask
      logits = jnp.where(never, -jnp.inf, logits)
    memories = []
    for t, params, own in zip(transforms, weights.transforms, state.transforms, strict=True):
      logits, own = t.apply(params, own, logits, masked, state.step)
      memories.append(own)
    said = _said(method, logits, request, position, state.passes)
    probs = jnp.exp(said.own)
    soft = denoiser.soften and denoiser.soften(weights.denoiser, probs, state.step)
    return said, soft, tuple(memories)

  def look_for(states: Array, position: Array, masked: Array, token: Array) -> Array:
    return _of(look(states, position, masked)[0].own, token)

  def look_once(*slots: Array) -> tuple[Said, Any]:
    said, soft, _ = look(*slots)
    return said._replace(own=_of(said.own, said.token)), soft

  slots, groups = (states, position, masked), groups_of(B, W, denoiser.vocab_size)
  if jax.tree.leaves(state.transforms):  # they may remember something of every token
    groups = 1
  if groups == 1:
    said, soft, memories = look(*slots)
  else:
    (said, soft), memories = by_groups(groups, look_once, *slots), state.transforms

  def nats(token: Array) -> Array:
    """f32[B, W]: the log-probabilities of tokens i32[B, W] at temperature 1."""
    if groups == 1:
      return _of(said.own, token)
    return said.own if policy.said is None else by_groups(groups, look_for, *slots, token)

  prediction = _predict(said, request, position, masked, state)
  size = blocks.size(weights.blocks, prediction)
  hi = jnp.where(state.step == 0, state.lo + size, state.hi)
  hi = jnp.minimum(hi, canvas.end)
  open_ = masked & (position < hi[:, None])
  prediction = prediction._replace(open=open_, block=position < hi[:, None])

  wanted, score, memory = policy.select(weights.policy, state.memory, prediction)
  change = decided(policy, weights.policy, wanted, score, prediction, live)
  if policy.said is not None:
    prediction = prediction._replace(token=policy.said(memory))
  canvas, (when, log_prob) = applied(
    change,
    canvas,
    (state.when, state.log_prob),
    (row, position),
    prediction.token,
    lambda: nats(prediction.token),
    state.passes,
    lambda: noise(denoiser, request.key, state.passes, position),
  )
  if denoiser.soften is not None:
    column = jnp.where(prediction.block & live[:, None], position, canvas.tokens.shape[1])
    told = soft.astype(canvas.soft.dtype)
    canvas = canvas._replace(soft=canvas.soft.at[row, column].set(told, mode="drop"))
  if method.cache.asks:
    column = jnp.where(masked & live[:, None], position, canvas.tokens.shape[1])
    sure = canvas.sure.at[row, column].set(prediction.confidence, mode="drop")
    canvas = canvas._replace(sure=sure)

  may = may_be_open(change, open_)
  full = ~(may & ~change.commit).any(1)
  full = full if change.stay is None else full & ~change.stay
  ended = stopping.end(weights.stopping, canvas, prediction, change.commit, full)
  canvas = rows_where(live, ended, canvas)
  full = ~(may & canvas.masked[row, position] & (position < canvas.end[:, None])).any(1)
  following = _next_block(method, canvas)
  if blocks.slides:
    full = jnp.ones_like(full)
  if change.stay is not None:
    stay = change.stay & (state.lo < canvas.end)
    full, following = full & ~stay, jnp.where(stay, state.lo, following)
  new, fresh = _memories(method, B)
  begun = policy.carry(new, memory, following - state.lo), fresh
  memory, remembered = rows_where(full, begun, (memory, memories))
  return DenoiseState(
    canvas=canvas,
    lo=jnp.where(live & full, following, state.lo),
    hi=hi,
    step=jnp.where(live, jnp.where(full, 0, state.step + 1), state.step),
    cache=state.cache,
    memory=memory,
    transforms=remembered,
    passes=state.passes + live.astype(jnp.int32),
    when=when,
    log_prob=log_prob,
    done=state.done | (live & (following >= canvas.end)),
  )


def denoise_round(
  method: DenoiseMethod, weights: Weights, request: DenoiseRequest, state: DenoiseState
) -> DenoiseState:
  """One pass, and the commits that follow from it."""
  states, state = read(method, weights, state)
  return act(method, weights, request, state, states)


def advance(
  method: DenoiseMethod,
  weights: Weights,
  request: DenoiseRequest,
  state: DenoiseState,
  rounds: Array,
) -> DenoiseState:
  """Runs until every row is done, `rounds` i32[] rounds at most; `method` is static."""
  return until_done(
    lambda state: denoise_round(method, weights, request, state),
    lambda state: state.done,
    state,
    rounds,
  )


compiled_start = jax.jit(start, static_argnames="method")
compiled_advance = jax.jit(advance, static_argnames="method", donate_argnames="state")
