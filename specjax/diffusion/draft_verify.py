"""Several rounds in one pass: the next canvases are guessed, read together, and kept if true.

FreeDave (Wu and Zhang 2025, arXiv 2510.00294). EXACT: token for token this gives what
`denoise.advance` gives, with any policy, blocks and stopping rule, at any temperature (noise
belongs to slots, or to slots and rounds), in no more passes. Canvases are compared as a whole, so
policies that commit many slots at a time, and tokens that are drawn anew in every round, are
guessed right less often.

The states of a canvas decide its next round; the rounds after it are guessed by letting the same
policy go on with these states. One pass reads the K canvases that the guesses lead to. The first is
true. A further one is true where the round that the states of the true canvas before it decide
leads to it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.diffusion import denoise
from specjax.diffusion.base import Canvas, CanvasCache
from specjax.diffusion.denoise import DenoiseMethod, DenoiseRequest, DenoiseState, Weights
from specjax.speculate import until_done
from specjax.trees.structure import rows_where


class Drafting(NamedTuple):
  """What rides in the loop.

  Attributes:
    state: what `denoise` has after as many rounds, which its `passes` counts.
    states: [B, W, E], the window's, from the last pass.
    passes: i32[B], of the denoiser.
  """

  state: DenoiseState
  states: Array
  passes: Array


def check_cache(cache: CanvasCache) -> None:
  """Raises ValueError for a cache whose passes depend on each other."""
  if not cache.steady:
    raise ValueError(
      "`cache` must be none, dual, prefix, free, committed or vicinity without warm-up where "
      f"guesses skip rounds, got {cache.name!r}, whose passes depend on each other."
    )


def start(method: DenoiseMethod, weights: Weights, canvas: Canvas) -> Drafting:
  """The state after the first pass. `method` is static.

  Raises:
    ValueError: see `check_cache`.
  """
  check_cache(method.cache)
  states, state = denoise.read(method, weights, denoise.start(method, weights, canvas))
  return Drafting(state, states, (~state.done).astype(jnp.int32))


def round_(
  method: DenoiseMethod, weights: Weights, request: DenoiseRequest, drafting: Drafting, guesses: int
) -> Drafting:
  """One pass over `guesses` = K canvases of each row; `method` and `guesses` are static."""
  state, states, passes = drafting

  def act(state: DenoiseState, states: Array) -> DenoiseState:
    return denoise.act(method, weights, request, state, states)

  drafts = [act(state._replace(cache=()), states)]
  for _ in range(guesses - 1):
    last = drafts[-1]
    following = act(last, states)
    # The states are those of this block: where it ends, the guesses end.
    drafts.append(rows_where(last.step == 0, last, following))

  # One pass reads K B rows, each with the cache as it was.
  many = jax.tree.map(lambda *x: jnp.concatenate(x), *drafts)
  caches = jax.tree.map(lambda x: jnp.concatenate([x] * guesses), state.cache)
  found, read = denoise.read(method, weights, many._replace(cache=caches))

  def of_guess(x: Any, k: int) -> Any:
    return jax.tree.map(lambda y: jnp.split(y, guesses)[k], x)

  true, best = drafts[0], jnp.zeros(len(passes), jnp.int32)
  for k in range(1, guesses):
    following = act(true, of_guess(found, k - 1))
    new, guess = following.canvas, drafts[k].canvas
    same = ((new.tokens == guess.tokens) & (new.masked == guess.masked)).all(1)
    kept = (best == k - 1) & ~true.done & same & (new.end == guess.end)
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
  method: DenoiseMethod,
  weights: Weights,
  request: DenoiseRequest,
  drafting: Drafting,
  rounds: Array,
  *,
  guesses: int = 4,
) -> Drafting:
  """EXACT: several canvases are read in one pass, with the tokens of one per pass.

  FreeDave (Wu and Zhang 2025, arXiv 2510.00294): rounds are made until every row is done.

  Measured: 2.4 passes, 93.0 % right (denoising_lists)

  Args:
    rounds: i32[], passes at most.
    method, guesses: static. 1 guess is plain decoding; published 4.
  """
  return until_done(
    lambda drafting: round_(method, weights, request, drafting, guesses),
    lambda drafting: drafting.state.done,
    drafting,
    rounds,
  )


compiled_start = jax.jit(start, static_argnames="method")
compiled_advance = jax.jit(
  advance, static_argnames=("method", "guesses"), donate_argnames="drafting"
)
