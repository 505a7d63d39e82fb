"""SWIFT: which sublayers a draft leaves out is searched while the text is written.

Letters: B batch, D depth, L layers, W tokens of a window.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import (
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  LayeredTarget,
  Params,
  Verdict,
  showing,
)
from specjax.drafters.layers.own_layers import agreement, drafted
from specjax.drafters.layers.skipped_layers import every_second
from specjax.sampling import DRAFT, NoiseSource, Settings

LEAST = 0.8  # a draft ends after a token that is less likely
GOOD, FRUITLESS, TRIES = 0.95, 300, 1000  # where the search ends


class Search(NamedTuple):
  """What the search knows.

  Attributes:
    run: bool[L, 2], the best set: whether the attention and the MLP of each layer run.
    score: f32[], the share of a window's tokens that it finds likeliest.
    tried: i32[], passes so far.
    stale: i32[], sets since the last one that was better.
    age: i32[], passes over the present windows.
  """

  run: Array
  score: Array
  tried: Array
  stale: Array
  age: Array


class SwiftState(NamedTuple):
  """search: arrays [B, ..]; written: i32[B], tokens of the answer; end: i32[B], where the row's
  window ends, 0 for none."""

  search: Search
  written: Array
  end: Array


def begin(layers: int) -> Search:
  """The search before its first pass, with the published first set."""
  zero = jnp.int32(0)
  return Search(jnp.asarray(every_second(layers)), jnp.float32(0), zero, zero, zero)


def unfinished(search: Search) -> Array:
  """bool[]: whether the search goes on."""
  return (search.score <= GOOD) & (search.stale < FRUITLESS) & (search.tried < TRIES)


def another(run: Array, noise: Array, count: int, afresh: Array) -> Array:
  """Another set than `run` bool[L, 2], in which the first and the last layer run.

  Args:
    noise: f32[2 (L - 2)], independent and alike.
    count: sublayers that a new set leaves out (static).
    afresh: bool[], a new set; otherwise one that is left out and one that is not change places.
  """
  inner = run[1:-1].reshape(-1)
  new = jnp.ones_like(inner).at[lax.top_k(noise, count)[1]].set(False)
  back = jnp.argmax(jnp.where(inner, -jnp.inf, noise))
  out = jnp.argmax(jnp.where(inner, noise, -jnp.inf))
  swapped = inner.at[back].set(True).at[out].set(False)
  return run.at[1:-1].set(jnp.where(afresh, new, swapped).reshape(-1, 2))


@functools.cache
def swift(target: LayeredTarget, nodes: int = 8, window: int = 32, skip: float = 0.45) -> Drafter:
  """Drafts without a set of the target's layers, which it searches while it decodes.

  This is SWIFT (Xia et al. 2024, arXiv 2410.06916), with a chain in place of its tree. In each
  round of the search one other set is tried: a random one, or the best one with two of its
  sublayers swapped, in place of the published Bayesian step. Its score is the share of a window's
  tokens that one pass of it finds likeliest. The window is the newest W tokens of the answer; every
  W passes it moves on, and the best set is scored anew before others are compared with it. The
  search ends as published, and what it has found is kept for later requests; then it costs nothing.
  It is shared by a batch: a score is the mean of the rows that have a window.

  It has half of plain decoding's speed where it was measured.

  Measured: 1.27 tokens per pass (own_layers)

  Args:
    nodes: the root and D tokens drafted at most; a draft ends after a token with a probability
      below LEAST.
    window: W, tokens on which a set is scored.
    skip: share of the sublayers between the first layer and the last that a random set leaves out.

  Raises:
    ValueError: fewer than 2 nodes, a window below 1, a share outside 0 to 1, or a model of less
      than 3 layers.
  """
  depth = nodes - 1
  target = showing(LayeredTarget, target, "swift")
  inner = 2 * (target.layers - 2)
  if nodes < 2 or window < 1 or not 0 <= skip <= 1:
    raise ValueError(
      "`nodes` must be at least 2, `window` at least 1 and `skip` between 0 and 1 for swift, got "
      f"{nodes}, {window} and {skip}."
    )
  if inner < 2:
    raise ValueError(f"the model of swift must have at least 3 layers, got {target.layers}.")
  count = int(inner * skip)

  def init(
    params: Search, target_params: Params, /, context: Context, features: Features, capacity: int
  ) -> Any:
    B, zero = context.length.shape[0], jnp.zeros_like(context.length)
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (B, *x.shape)), params)
    return SwiftState(rows, zero, zero)

  def step(
    target_params: Params, search: Search, end: Array, fresh: Array, context: Context, noise: Array
  ) -> Search:
    other = another(search.run, noise, count, search.tried % 2 == 0)
    run = jnp.where(fresh, search.run, other)
    seen = (end > 0).astype(jnp.float32)
    found = agreement(target, target_params, context, end, window, run)
    score = (found * seen).sum() / jnp.maximum(seen.sum(), 1.0)
    better = score > search.score
    takes = fresh | better
    return Search(
      jnp.where(takes, run, search.run),
      jnp.where(takes, score, search.score),
      search.tried + 1,
      jnp.where(fresh, search.stale, jnp.where(better, 0, search.stale + 1)),
      (jnp.where(fresh, 0, search.age) + 1) % window,
    )

  def propose(
    params: Params,
    target_params: Params,
    state: SwiftState,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    B = context.length.shape[0]
    # The row that has taken part longest speaks for all; one that came later learns from it.
    leader = jnp.argmax(state.search.tried)
    search: Search = jax.tree.map(lambda x: x[leader], state.search)
    fresh = (search.age == 0) | ~(state.end > 0).any()
    end = jnp.where(fresh, jnp.where(state.written > window, context.length, 0), state.end)
    random = noise.gumbel(DRAFT, (B, inner))[leader]
    goes_on = unfinished(search) & (end > 0).any()
    search = lax.cond(
      goes_on, lambda s: step(target_params, s, end, fresh, context, random), lambda s: s, search
    )
    least = jnp.full(B, LEAST, jnp.float32)
    draft, _ = drafted(target, target_params, context, search.run, depth, least=least)
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (B, *x.shape)), search)
    return draft, SwiftState(rows, state.written, jnp.where(goes_on, end, state.end))

  def update(
    params: Params,
    target_params: Params,
    state: SwiftState,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    return state._replace(written=state.written + rows)

  def read(
    params: Params,
    target_params: Params,
    state: SwiftState,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    quiet = rows == 0
    return state._replace(
      written=jnp.where(quiet, state.written, 0), end=jnp.where(quiet, state.end, 0)
    )

  def keep(params: Params, state: SwiftState, context: Context) -> Params:
    leader = jnp.argmax(state.search.tried)
    return jax.tree.map(lambda x: x[leader], state.search)._replace(age=jnp.int32(0))

  return Drafter(
    "swift",
    "deterministic",
    depth + 1,
    depth,
    init,
    propose,
    update,
    read=read,
    keep=keep,
    varies=True,
  )
