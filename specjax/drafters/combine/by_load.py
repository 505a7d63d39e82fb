"""How much is drafted follows from what a round costs and how much of a draft is accepted.

With 32 busy rows a guess costs what it costs, with one it is nearly free. This drafter has drafts
of several sizes, nothing among them, and in each round takes the one with the most expected tokens
a second over the rows of the batch.

What it looks at is known before the round's draft is verified: what was accepted in rounds before,
and which guesses there are. Under a rule that says the same whatever is drafted, `greedy` or
`target_only`, it changes no token.

Letters: B batch, N nodes, C sizes, nothing included.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax import bucketing
from specjax.base import (
  Context,
  Draft,
  Drafter,
  Evaluation,
  Features,
  Params,
  Target,
  Verdict,
)
from specjax.drafters.combine.fallback import widened
from specjax.drafters.stateless import none
from specjax.sampling import NoiseSource, Settings

ROWS = 17  # kinds of batches, by the logarithm of B
PRIOR = 0.75  # of each guess, that it is accepted where that above it was
POOLED, OWN = 2.0, 4.0  # rounds that the prior, and what other rows saw, count as
MEMORY = 0.98  # of a round in the next


class Priced(NamedTuple):
  """The weights.

  Attributes:
    own: the drafter's.
    prices: f32[ROWS, C], of a round of B rows with a draft of each size, in any one unit; row
      `kind(B)` counts. Where they are equal the largest draft is taken.
  """

  own: Params
  prices: Array


class Seen(NamedTuple):
  """What is kept between rounds.

  Attributes:
    own: the drafter's state.
    tries, hits: f32[B, N], rounds in which a node was offered, and accepted, older ones less.
    live: bool[B], rows that wrote something in the last round, or are new.
    size: i32[B], the round's choice, the same in all rows.
  """

  own: Any
  tries: Array
  hits: Array
  live: Array
  size: Array


def kind(B: int) -> int:
  """Which row of the prices is for B rows: 1, 2, up to 4, up to 8, ..."""
  return (B - 1).bit_length()


def chances(tries: Array, hits: Array) -> Array:
  """f32[B, N], that a node which is offered is accepted, together with those above it.

  A row's own rounds count most; where it has few, those of all rows, and then a prior.
  """
  N = tries.shape[1]
  prior = jnp.asarray([PRIOR**i for i in range(N)], jnp.float32)
  pooled = (hits.sum(0) + POOLED * prior) / (tries.sum(0) + POOLED)
  return (hits + OWN * pooled[None]) / (tries + OWN)


def best(widths: Sequence[int], prices: Array, gains: Array) -> Array:
  """i32[], the size with the most expected tokens for its price, the larger of equal ones.

  Args:
    widths: nodes of each size, the root included, rising.
    prices: f32[C].
    gains: f32[N], what all rows expect of each node; of the root, how many rows there are.
  """
  sums = jnp.cumsum(gains)
  rate = jnp.stack([sums[width - 1] for width in widths]) / prices
  return jnp.int32(len(widths) - 1) - jnp.argmax(rate[::-1]).astype(jnp.int32)


@functools.cache
def by_load(target: Target, *drafters: Drafter) -> Drafter:
  """In each round the draft, of several sizes or none, that promises most tokens a second.

  The chance of each node is estimated for each row from what was accepted before, as DSpark's
  scheduler does with the confidences of its head (arXiv 2607.05147); that they come from rounds,
  so that any drafter serves, is ours. Prices are measured, see `decoding.prices`.

  Args:
    drafters: of one kind and one state, with rising numbers of nodes, each the first nodes of the
      next. They choose their tokens, and write their state in `update` alone.

  Raises:
    ValueError: drafters that draw tokens, or replace the target's evaluation; when it is traced,
      ones that keep other things for another size, or write while they draft.
  """
  whole = drafters[-1]
  for source in drafters:
    if source.proposal != "deterministic" or source.evaluate is not None:
      raise ValueError(
        f"drafter={source.name!r} cannot draft by load: it draws its tokens, or has a pass of its "
        "own."
      )
  N = whole.nodes
  widths = (1, *(source.nodes for source in drafters))

  def init(
    params: Params, target_params: Params, context: Context, features: Features, capacity: int
  ) -> Any:
    own = whole.init(params.own, target_params, context, features, capacity)
    for source in drafters[:-1]:
      begin = functools.partial(source.init, capacity=capacity)
      other = jax.eval_shape(begin, params.own, target_params, context=context, features=features)
      if jax.tree.map(jnp.shape, own) != jax.tree.map(jnp.shape, other):
        raise ValueError(
          f"drafter={source.name!r} cannot draft by load: what it keeps depends on its size."
        )
    B = len(context.length)
    nothing = jnp.zeros((B, N))
    return Seen(own, nothing, nothing, jnp.ones(B, bool), jnp.zeros(B, jnp.int32))

  def propose(
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    live = state.live.astype(jnp.float32)[:, None]
    gains = chances(state.tries, state.hits).at[:, 0].set(1.0) * live
    prices = params.prices[kind(len(live))]

    def drafted(source: Drafter) -> Draft:
      draft, after = source.propose(params.own, target_params, state.own, context, settings, noise)
      if not all(a is b for a, b in zip(*map(jax.tree.leaves, (state.own, after)), strict=True)):
        raise ValueError(
          f"drafter={source.name!r} cannot draft by load: it writes its state while it drafts."
        )
      return widened(draft, N)

    def nothing() -> Draft:
      return widened(none().propose((), (), (), context, settings, noise)[0], N)

    size = best(widths, prices, gains.sum(0))
    draft = lax.switch(size, [nothing, *(functools.partial(drafted, x) for x in drafters)])
    if whole.varies:  # there may be fewer guesses
      size = best(widths, prices, jnp.where(draft.valid, gains, 0).sum(0))
    kept = jnp.arange(N)[None] < jnp.asarray(widths, jnp.int32)[size]
    alike = jnp.broadcast_to(size, state.size.shape)
    return draft._replace(valid=draft.valid & kept), state._replace(size=alike)

  def evaluate(
    params: Params, target_params: Params, state: Any, cache: Any, draft: Draft, mask: Array
  ) -> Evaluation:
    return bucketing.one_of(
      target, target_params, widths[:-1], state.size[0], cache, draft, mask, whole.hidden_layers
    )

  def update(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    own = whole.update(params.own, target_params, state.own, draft, evaluation, verdict, rows)
    live = rows > 0
    walked = jnp.arange(verdict.path.shape[1])[None] <= verdict.count[:, None]
    hit = ((verdict.path[..., None] == jnp.arange(N)[None, None]) & walked[..., None]).any(1)

    def count(sums: Array, now: Array) -> Array:
      return jnp.where(live[:, None], MEMORY * sums + now.astype(jnp.float32), sums)

    tries, hits = count(state.tries, draft.valid), count(state.hits, hit & draft.valid)
    return state._replace(own=own, tries=tries, hits=hits, live=live)

  def read(
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    given = whole.read or whole.update
    own = given(params.own, target_params, state.own, draft, evaluation, verdict, rows)
    return state._replace(own=own)

  def keep(params: Params, state: Any, context: Context) -> Params:
    assert whole.keep is not None
    return params._replace(own=whole.keep(params.own, state.own, context))

  return Drafter(
    f"auto[{whole.name}]",
    "deterministic",
    N,
    whole.depth,
    init,
    propose,
    update,
    evaluate,
    whole.hidden_layers,
    read,
    whole.keep and keep,
    by_pieces=whole.by_pieces,
  )


def unpriced(own: Params, sizes: int) -> Priced:
  """Weights of `by_load` with `sizes` drafters before a round was timed: all cost the same."""
  return Priced(own, jnp.ones((ROWS, 1 + sizes)))
