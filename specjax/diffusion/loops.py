"""The loops that fill canvases, behind one contract: start, advance, and what is filled so far.

Letters: B batch, L canvas length.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion import any_subset, denoise, draft_verify
from specjax.diffusion.any_subset import AnyOrder
from specjax.diffusion.base import Canvas
from specjax.diffusion.denoise import DenoiseMethod, DenoiseRequest, Weights

State = Any  # of the loop that made it


class Filled(NamedTuple):
  """What a loop has written, see `denoise.DenoiseState`.

  Attributes:
    tokens, end: i32[B, L], i32[B], those of the canvas.
    settled: i32[B]. No slot before it will change.
    when, log_prob: i32[B, L], f32[B, L], the round of each slot and its log-probability there.
    passes: i32[B], of the network.
    done: bool[B].
  """

  tokens: Array
  end: Array
  settled: Array
  when: Array
  log_prob: Array
  passes: Array
  done: Array


def _filled(state: denoise.DenoiseState, passes: Array) -> Filled:
  canvas, done = state.canvas, state.done
  settled = jnp.where(done, canvas.end, jnp.minimum(state.lo, canvas.end))
  return Filled(canvas.tokens, canvas.end, settled, state.when, state.log_prob, passes, done)


@jax.jit
def _over(other: State, state: State) -> State:
  """The arrays of a state, of which those of a canvas's length are put at the head of longer ones,
  or cut to shorter ones."""

  def put(new: Array, old: Array) -> Array:
    if new.size < old.size:
      return old[tuple(slice(n) for n in new.shape)]
    return old if new.shape == old.shape else jax.lax.dynamic_update_slice(new, old, [0] * new.ndim)

  return jax.tree.map(put, other, state)


def _apart(method: DenoiseMethod) -> bool:
  """Whether no slot needs later masked ones, nor is one filled before its block begins."""
  denoiser, blocks = method.denoiser, method.blocks
  ordered = denoiser.block is not None or denoiser.masks_last
  return (
    (ordered or denoiser.encode is not None)
    and blocks.length == blocks.window
    and not method.stopping.fills
  )


@dataclasses.dataclass(frozen=True)
class Denoise:
  """One canvas per pass, see `denoise`."""

  method: DenoiseMethod

  @property
  def window(self) -> int:
    """Slots past the longest end that a canvas must have."""
    return self.method.blocks.window

  @property
  def grows(self) -> bool:
    """Whether a canvas may have fewer slots than are asked for, if all are there that have begun.

    A round ends one block at most.
    """
    return _apart(self.method)

  def start(self, weights: Weights, canvas: Canvas) -> State:
    return denoise.compiled_start(self.method, weights, canvas)

  def advance(
    self, weights: Weights, request: DenoiseRequest, state: State, rounds: Array
  ) -> State:
    return denoise.compiled_advance(self.method, weights, request, state, rounds)

  def filled(self, state: State) -> Filled:
    return _filled(state, state.passes)


@dataclasses.dataclass(frozen=True)
class DraftVerify:
  """`guesses` canvases per pass, see `draft_verify`."""

  method: DenoiseMethod
  guesses: int

  @property
  def window(self) -> int:
    return self.method.blocks.window

  @property
  def grows(self) -> bool:
    return _apart(self.method)  # guesses end with the block, and so does a round

  def start(self, weights: Weights, canvas: Canvas) -> State:
    return draft_verify.compiled_start(self.method, weights, canvas)

  def advance(
    self, weights: Weights, request: DenoiseRequest, state: State, rounds: Array
  ) -> State:
    guesses = self.guesses
    return draft_verify.compiled_advance(
      self.method, weights, request, state, rounds, guesses=guesses
    )

  def filled(self, state: State) -> Filled:
    return _filled(state.state, state.passes)


class Subset(NamedTuple):
  """The state of `AnySubset`: that of `any_subset`, and the canvas that it began with."""

  state: any_subset.AnySubsetState
  canvas: Canvas


@dataclasses.dataclass(frozen=True)
class AnySubset:
  """`guesses` slots in two passes, from left to right, see `any_subset`."""

  model: AnyOrder
  guesses: int
  window = 0
  grows = False

  def start(self, weights: Weights, canvas: Canvas) -> State:
    order = jnp.zeros_like(canvas.tokens)
    return Subset(any_subset.compiled_start(canvas, order), canvas)

  def advance(
    self, weights: Weights, request: DenoiseRequest, state: State, rounds: Array
  ) -> State:
    asked = any_subset.AnySubsetRequest(request.settings, request.key, weights.stopping)
    own = any_subset.compiled_advance(
      self.model, weights.denoiser, asked, state.state, rounds, guesses=self.guesses
    )
    return Subset(own, state.canvas)

  def filled(self, state: State) -> Filled:
    own, canvas = state
    tokens = jnp.where(own.rank < own.filled[:, None], own.tokens, canvas.tokens)
    left = (own.rank >= own.filled[:, None]) & canvas._replace(end=own.end).inside
    settled = jnp.where(left.any(1), jnp.argmax(left, 1).astype(jnp.int32), own.end)
    done = own.filled >= own.total
    return Filled(tokens, own.end, settled, own.when, own.log_prob, own.passes, done)


Loop = Denoise | DraftVerify | AnySubset


def resized(loop: Loop, weights: Weights, state: State, canvas: Canvas) -> State:
  """The state over a canvas of another length, of which it has filled the first slots.

  A longer one may have slots before the state's end where the loop `grows`, see there. A shorter
  one must reach as far past the block of every row as the loop's window does.
  """
  return _over(loop.start(weights, canvas), state)
