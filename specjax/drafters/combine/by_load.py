"""How much is drafted follows from what a round costs and how much of a draft is accepted.

With 32 busy rows a guess costs what it costs, with one it is nearly free. This drafter has drafts
of several sizes, nothing among them, and every few rounds takes the one with the most expected
tokens a second over the rows of the batch.

What it looks at is what was accepted in rounds before. Under a rule that says the same whatever is
drafted, `greedy` or `target_only`, it changes no token.

Letters: B batch, N nodes, C sizes, nothing included.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Verdict
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
    tries, hits: f32[B, N], rounds whose draft could have a node, and in which it was accepted;
      older ones count less.
    live: bool[B], rows that wrote something in the last round, or are new.
  """

  own: Any
  tries: Array
  hits: Array
  live: Array


def kind(B: int) -> int:
  """Which row of the prices is for B rows: 1, 2, up to 4, up to 8, ..."""
  return (B - 1).bit_length()


def chances(tries: Array, hits: Array) -> Array:
  """f32[B, N], that a node is accepted, together with those above it.

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
def by_load(*drafters: Drafter) -> Drafter:
  """For a few rounds the draft, of several sizes or none, that promises most tokens a second.

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
    return Seen(own, jnp.zeros((B, N)), jnp.zeros((B, N)), jnp.ones(B, bool))

  def propose(
    source: Drafter,
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    own = state.own
    draft, after = source.propose(params.own, target_params, own, context, settings, noise)
    if not all(a is b for a, b in zip(*map(jax.tree.leaves, (own, after)), strict=True)):
      raise ValueError(
        f"drafter={source.name!r} cannot draft by load: it writes its state while it drafts."
      )
    return draft, state

  def nothing(
    params: Params,
    target_params: Params,
    state: Any,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    return none().propose((), (), (), context, settings, noise)[0], state

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
    live, node = rows > 0, jnp.arange(N)[None]
    walked = jnp.arange(verdict.path.shape[1])[None] <= verdict.count[:, None]
    hit = ((verdict.path[..., None] == node[None]) & walked[..., None]).any(1)

    def count(sums: Array, now: Array) -> Array:
      return jnp.where(live[:, None], MEMORY * sums + now.astype(jnp.float32), sums)

    tries = count(state.tries, node < draft.tokens.shape[1])
    return Seen(own, tries, count(state.hits, hit), live)

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

  def choose(params: Params, state: Any) -> Array:
    gains = chances(state.tries, state.hits).at[:, 0].set(1.0)
    live = state.live.astype(jnp.float32)[:, None]
    return best(widths, params.prices[kind(len(live))], (gains * live).sum(0))

  largest = whole._replace(
    name=f"auto[{whole.name}]",
    init=init,
    propose=functools.partial(propose, whole),
    update=update,
    read=read,
    keep=whole.keep and keep,
    expects=None,
  )
  smaller = (
    largest._replace(nodes=source.nodes, propose=functools.partial(propose, source))
    for source in drafters[:-1]
  )
  empty = largest._replace(nodes=1, propose=nothing, varies=False)
  return largest._replace(sizes=(empty, *smaller, largest), choose=choose)


def unpriced(own: Params, sizes: int) -> Priced:
  """Weights of `by_load` with `sizes` drafters before a round was timed: all cost the same."""
  return Priced(own, jnp.ones((ROWS, 1 + sizes)))
