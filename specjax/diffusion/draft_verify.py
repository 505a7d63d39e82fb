"""Several rounds in one pass: the next canvases are guessed, read together, and kept if true.

FreeDave (Wu and Zhang 2025, arXiv 2510.00294). EXACT: token for token this gives what
`denoise.advance` gives, with any policy, blocks and stopping rule, at any temperature (noise
belongs to slots), in no more passes. Canvases are compared as a whole, so policies that commit many
slots at a time are guessed right less often.

What is known of the canvas already decides its next round; the rounds after it are guessed by
letting the same policy go on with what is known. One pass reads the K canvases. The first is true.
Each further one is, where the round before it, decided by what was read of a true canvas, leads to
it.

Letters: B batch, K guesses, W window, E model width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion import denoise
from specjax.diffusion.base import Canvas
from specjax.diffusion.denoise import Method, Request, State, Weights
from specjax.trees.structure import rows_where


class Drafting(NamedTuple):
  """What rides in the loop.

  Attributes:
    state: as after as many rounds of `denoise`; its `forwards` counts these.
    states: [B, W, E], what the denoiser says of the canvas.
    passes: i32[B], of the denoiser.
  """

  state: State
  states: Array
  passes: Array


def start(method: Method, weights: Weights, canvas: Canvas) -> Drafting:
  """The state after the first pass. `method` is static.

  Raises:
    ValueError: a cache whose passes depend on each other.
  """
  if not method.cache.steady:
    raise ValueError(
      f"cache={method.cache.name!r}: its passes depend on each other, so that rounds cannot be "
      "skipped; accepted are none, dual, prefix, free, and vicinity without warm-up."
    )
  states, state = denoise.read(method, weights, denoise.start(method, weights, canvas))
  return Drafting(state, states, (~state.done).astype(jnp.int32))


def _light(state: State) -> State:
  return state._replace(cache=())


def _same(a: Canvas, b: Canvas) -> Array:
  """bool[B]: the same tokens, holes and end."""
  same = (a.tokens == b.tokens) & (a.masked == b.masked)
  return same.all(1) & (a.end == b.end)


def round_(
  method: Method, weights: Weights, request: Request, drafting: Drafting, guesses: int
) -> Drafting:
  """One pass over `guesses` = K canvases of each row; `method` and `guesses` are static."""
  state, states, passes = drafting

  def act(state: State, states: Array) -> State:
    return denoise.act(method, weights, request, state, states)

  drafts = [act(_light(state), states)]
  for _ in range(guesses - 1):
    last = drafts[-1]
    following = act(last, states)
    # Nothing is known of the next block: there the guesses end.
    drafts.append(rows_where(last.step == 0, last, following))

  # K B rows in one pass, each with the cache as it is.
  many = jax.tree.map(lambda *x: jnp.concatenate(x), *drafts)
  caches = jax.tree.map(lambda x: jnp.concatenate([x] * guesses), state.cache)
  found, read = denoise.read(method, weights, many._replace(cache=caches))

  def of_guess(x: Any, k: int) -> Any:
    return jax.tree.map(lambda y: jnp.split(y, guesses)[k], x)

  true, best = drafts[0], jnp.zeros(len(passes), jnp.int32)
  for k in range(1, guesses):
    following = act(true, of_guess(found, k - 1))
    kept = (best == k - 1) & ~true.done & _same(following.canvas, drafts[k].canvas)
    true = rows_where(kept, following, true)
    best = best + kept.astype(jnp.int32)

  def chosen(x: Any) -> Any:
    row = jnp.arange(len(best))
    return jax.tree.map(lambda y: y.reshape(guesses, -1, *y.shape[1:])[best, row], x)

  needed = ~drafts[0].done
  return Drafting(
    true._replace(cache=chosen(read.cache)), chosen(found), passes + needed.astype(jnp.int32)
  )


def advance(
  method: Method, weights: Weights, request: Request, drafting: Drafting, rounds: Array,
  *, guesses: int = 4, while_loop: Callable[..., Any] = jax.lax.while_loop,
) -> Drafting:  # fmt: skip
  """EXACT: several rounds are made in one pass, until every row is done.

  Args:
    rounds: i32[], passes at most.
    method, guesses, while_loop: static. 1 guess is plain decoding; published 4.
  """

  def unfinished(carry) -> Array:
    i, drafting = carry
    return (i < rounds) & ~drafting.state.done.all()

  def body(carry):
    i, drafting = carry
    return i + 1, round_(method, weights, request, drafting, guesses)

  return while_loop(unfinished, body, (jnp.int32(0), drafting))[1]


compiled_start = jax.jit(start, static_argnames="method")
compiled_advance = jax.jit(
  advance, static_argnames=("method", "guesses", "while_loop"), donate_argnames="drafting"
)
