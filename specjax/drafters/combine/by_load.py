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

PRIOR = 0.75  # of a guess of which nothing was seen, that it is accepted where the one before is
POOLED, OWN = 5.0, 20.0  # rounds that what was usual, and what other rows saw, count as
MEMORY = 0.98  # of a round in the next
USUAL = 0.1  # how far what is usual goes to what the rows of now see
UNKNOWN = 0.05  # as which part of all that was seen what was never seen counts
# Of so many choices one, early, is the next larger size, and one the next smaller: what is not run
# for long is not known.
TRY, LARGER, SMALLER = 50, 13, 38
LEAST = 0.01  # chance by which another is divided


class Seen(NamedTuple):
  """What is kept between rounds.

  Attributes:
    own: the drafter's state.
    tries, hits: f32[B, C], of the nodes that a size has beyond the one before, in rounds whose
      draft could have them: how many before them were accepted, and how many of them. Of the first
      size with guesses tries are rounds that had some; of none, rounds that asked for guesses, and
      hits those that had some. Older ones count less.
    live: bool[B], rows that wrote something in the last round, or are new.
  """

  own: Any
  tries: Array
  hits: Array
  live: Array


def pooled(tries: np.ndarray, hits: np.ndarray, usual: np.ndarray) -> np.ndarray:
  """f64[C], what all rows see, by `Seen.tries` and `Seen.hits` f64[B, C]: how often a draft has a
  guess, and how many nodes of each size are accepted for one of the size before.

  Of what was not seen it is what is `usual`, and less or more of it as of the size before.
  """
  tried, hit, found = tries.sum(0).tolist(), hits.sum(0).tolist(), list[float]()
  for i, own in enumerate(usual.tolist()):
    before = own if i < 2 else own * found[-1] / max(usual[i - 1], LEAST)
    found.append((hit[i] + POOLED * before) / (tried[i] + POOLED))
  return np.array(found)


def chances(tries: np.ndarray, hits: np.ndarray, now: np.ndarray) -> np.ndarray:
  """f64[B, C], what `pooled` gives for all rows, of each row: its own rounds count most."""
  return (hits + OWN * now) / (tries + OWN)


def best(prices: np.ndarray, gains: np.ndarray) -> int:
  """The size with the most expected tokens for its price.

  Args:
    prices: f64[C], of a round, in any one unit.
    gains: f64[C], tokens that all rows expect of each size beyond the one before; of none, how many
      rows there are.
  """
  return int(np.argmax(np.cumsum(gains) / prices))


class Chooser:
  """Chooses sizes of drafts, a `base.ChooseSize`, and remembers what was usual.

  What is usual moves only where something was seen in the last rounds: a size that was not drafted
  is not thought of as worse, and a request that drafts no more is not counted again and again.

  Args:
    widths: nodes of each size, the root included, rising.
    narrow: whether rounds in which no row has a guess cost what they cost without drafts.
  """

  def __init__(self, widths: Sequence[int], narrow: bool):
    self.narrow, self.choices, self._last = narrow, 0, 0
    self._more = np.diff(widths, prepend=0)  # nodes of each size beyond the one before
    each = np.add.reduceat(PRIOR ** np.arange(widths[-1]), [0, *widths[:-1]])  # of a chain
    self._prior = each / [1.0, 1.0, *each[1:-1]]
    # Moving averages of what was seen of each size, and of whether it was seen.
    self._sum, self._weight = np.zeros((2, len(widths)))

  @property
  def usual(self) -> np.ndarray:
    """f64[C], as of `pooled`, of requests so far."""
    return (self._sum + UNKNOWN * self._prior) / (self._weight + UNKNOWN)

  def _remember(self, tries: np.ndarray, hits: np.ndarray) -> None:
    """What rows that are live have seen, of sizes that their last draft could have."""
    tried, drafted = tries.sum(0), self._last + 1 if self._last else 0
    share = np.where(np.arange(len(tried)) < drafted, USUAL * tried / (tried + POOLED), 0.0)
    self._weight += share * (1 - self._weight)
    self._sum += share * (hits.sum(0) / np.maximum(tried, 1e-9) - self._sum)

  def __call__(self, prices: np.ndarray, state: Any) -> tuple[int, float]:
    tries, hits, live = (np.asarray(x, float) for x in (state.tries, state.hits, state.live))
    tries, hits = (x[live > 0] for x in (tries, hits))
    self._remember(tries, hits)
    own = chances(tries, hits, pooled(tries, hits, self.usual))
    gains = np.minimum(np.cumprod(own, 1), self._more).sum(0)
    gains[0] = len(own)
    if self.narrow:
      prices = prices[0] + (1 - np.prod(1 - own[:, 0])) * (prices - prices[0])
    size = best(prices, gains)
    self.choices += 1
    other = size + {LARGER: 1, SMALLER: -1}.get(self.choices % TRY, 0)
    self._last = min(max(other, 0), len(self._more) - 1)
    return self._last, float(prices[self._last])


@functools.cache
def by_load(*drafters: Drafter) -> Drafter:
  """Chooses, every few rounds, the size of a draft that promises most tokens per second.

  What each row will accept is estimated from what it accepted before, where DSpark's scheduler has
  the confidences of its head (arXiv 2607.05147); that estimates come from rounds, so that any
  drafter serves, is ours. Prices are measured, see `serving.timing`.

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
    B, C = len(context.length), len(widths)
    return Seen(own, jnp.zeros((B, C)), jnp.zeros((B, C)), jnp.ones(B, bool))

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
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    own = whole.update(params, target_params, state.own, draft, evaluation, verdict, rows)
    live, width = rows > 0, draft.tokens.shape[1]
    walked = jnp.arange(verdict.path.shape[1])[None] <= verdict.count[:, None]
    wide, number = jnp.asarray(widths), jnp.arange(len(widths))[None, None]
    size = (verdict.path[..., None] >= wide[None, None]).sum(-1)  # in which each node is first
    some = draft.valid[:, 1:].any(1).astype(jnp.int32)
    # Accepted nodes of each size; those of none count rounds that had a guess.
    hit = ((size[..., None] == number) & walked[..., None]).sum(1)
    hit = hit.at[:, 0].set(some)
    before = jnp.pad(hit[:, :-1], ((0, 0), (1, 0)), constant_values=int(width > 1))
    tried = jnp.where((width >= wide)[None], before, 0)

    def count(sums: Array, now: Array) -> Array:
      return jnp.where(live[:, None], MEMORY * sums + now.astype(jnp.float32), sums)

    return Seen(own, count(state.tries, tried), count(state.hits, hit), live)

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
    update=update,
    read=read,
    keep=whole.keep and keep,
    expects=None,
  )
  # Each with its own depth: a round writes no more rows into caches than its draft is deep.
  smaller = (
    largest._replace(
      nodes=source.nodes, depth=source.depth, propose=functools.partial(propose, source)
    )
    for source in drafters[:-1]
  )
  empty = largest._replace(nodes=1, depth=0, propose=nothing, varies=False)
  chooser = functools.partial(Chooser, widths)
  return largest._replace(sizes=(empty, *smaller, largest), chooser=chooser)
