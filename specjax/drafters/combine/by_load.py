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
import numpy as np
from jax import Array

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Verdict
from specjax.drafters.stateless import none
from specjax.sampling import NoiseSource, Settings

PRIOR = 0.75  # of a guess of which nothing was seen, that it is accepted where that before it was
POOLED, OWN = 2.0, 4.0  # rounds that what was usual, and what other rows saw, count as
MEMORY = 0.98  # of a round in the next
USUAL = 0.05  # how far what is usual goes to what the rows of now see
TRY = 50  # of so many choices one is the next larger size, so that it stays known


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


def pooled(tries: np.ndarray, hits: np.ndarray, usual: np.ndarray) -> np.ndarray:
  """f64[N], that a node is accepted, together with those above it, by rounds f32[B, N] of all rows.

  Nodes that no draft has had for long are thought of as those before them, and `usual` f64[N].
  """
  tried, hit = tries.sum(0), hits.sum(0)
  found = np.ones(len(usual))
  for i in range(1, len(usual)):
    before = min(usual[i], found[i - 1])
    found[i] = (hit[i] + POOLED * before) / (tried[i] + POOLED)
  return found


def chances(tries: np.ndarray, hits: np.ndarray, usual: np.ndarray) -> np.ndarray:
  """f64[B, N], that a node is accepted: a row's own rounds count most, then `usual`."""
  return (hits + OWN * usual) / (tries + OWN)


def best(widths: Sequence[int], prices: np.ndarray, gains: np.ndarray) -> int:
  """The size with the most expected tokens for its price.

  Args:
    widths: nodes of each size, the root included, rising.
    prices: f64[C], of a round, in any one unit.
    gains: f64[N], what all rows expect of each node; of the root, how many rows there are.
  """
  tokens = np.cumsum(gains)[np.asarray(widths) - 1]
  return int(np.argmax(tokens / prices))


class Chooser:
  """Chooses sizes of drafts, a `base.ChooseSize`, and remembers what was usual.

  Args:
    widths: nodes of each size, the root included, rising.
  """

  def __init__(self, widths: Sequence[int]):
    self.widths, self.choices = widths, 0
    self.usual = PRIOR ** np.arange(float(widths[-1]))

  def __call__(self, prices: np.ndarray, state: Any) -> int:
    tries, hits, live = (np.asarray(x, float) for x in (state.tries, state.hits, state.live))
    now = pooled(tries, hits, self.usual)
    self.usual += USUAL * (now - self.usual)
    self.choices += 1
    gains = live @ chances(tries, hits, now)
    gains[0] = live.sum()
    size = best(self.widths, prices, gains)
    return min(size + (self.choices % TRY == 0), len(self.widths) - 1)


@functools.cache
def by_load(*drafters: Drafter) -> Drafter:
  """Chooses, every few rounds, the size of a draft that promises most tokens per second.

  The chance of each node is estimated for each row from what was accepted before, as DSpark's
  scheduler does with the confidences of its head (arXiv 2607.05147); that they come from rounds,
  so that any drafter serves, is ours. Prices are measured, see `serving.timing`.

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
    own = whole.init(params, target_params, context, features, capacity)
    for source in drafters[:-1]:
      begin = functools.partial(source.init, capacity=capacity)
      other = jax.eval_shape(begin, params, target_params, context=context, features=features)
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
    draft, after = source.propose(params, target_params, own, context, settings, noise)
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
    depth: int,
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    # No path is longer than the draft, so that layers of a head run no more rows than it has.
    short = verdict._replace(
      path=verdict.path[:, : depth + 1], tokens=verdict.tokens[:, : depth + 1]
    )
    own = whole.update(params, target_params, state.own, draft, evaluation, short, rows)
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
    own = given(params, target_params, state.own, draft, evaluation, verdict, rows)
    return state._replace(own=own)

  def keep(params: Params, state: Any, context: Context) -> Params:
    assert whole.keep is not None
    return whole.keep(params, state.own, context)

  largest = whole._replace(
    name=f"auto[{whole.name}]",
    init=init,
    propose=functools.partial(propose, whole),
    update=functools.partial(update, whole.depth),
    read=read,
    keep=whole.keep and keep,
    expects=None,
  )
  smaller = (
    largest._replace(
      nodes=source.nodes,
      propose=functools.partial(propose, source),
      update=functools.partial(update, source.depth),
    )
    for source in drafters[:-1]
  )
  empty = largest._replace(
    nodes=1, propose=nothing, update=functools.partial(update, 0), varies=False
  )
  chooser = functools.partial(Chooser, widths)
  return largest._replace(sizes=(empty, *smaller, largest), chooser=chooser)
