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

PRIOR = 0.75  # of a first guess of which nothing was seen, that it is accepted
POOLED, OWN = 8.0, 8.0  # rounds that what was usual, and what other rows saw, count as
MEMORY = 0.98  # of a round in the next
USUAL = 0.05  # how far what is usual goes to what the rows of now see
UNKNOWN = 0.05  # as which part of all that was seen what was never seen counts
TRY = 50  # of so many choices one is the next larger size, so that it stays known
LEAST = 0.01  # chance by which another is divided


class Seen(NamedTuple):
  """What is kept between rounds.

  Attributes:
    own: the drafter's state.
    tries, hits: f32[B, N], of a node, rounds whose draft could have it and in which the node before
      it was accepted, and in which itself was; of the root, rounds that asked for guesses, and that
      had one. Older ones count less.
    live: bool[B], rows that wrote something in the last round, or are new.
  """

  own: Any
  tries: Array
  hits: Array
  live: Array


def pooled(tries: np.ndarray, hits: np.ndarray, usual: np.ndarray) -> np.ndarray:
  """f64[N], what all rows see, by `Seen.tries` and `Seen.hits` f64[B, N]: how often a draft has a
  guess, and how likely each node of one that has is accepted where the one before it is.

  Of what was not seen it is what is `usual`, and less or more of it as of the node before. Both
  are counts of the same rounds, so a sibling of the node before may have more than 1.
  """
  tried, hit, found = tries.sum(0).tolist(), hits.sum(0).tolist(), list[float]()
  for i, own in enumerate(usual.tolist()):
    before = own if i < 2 else min(own * found[-1] / max(usual[i - 1], LEAST), 1.0)
    found.append((hit[i] + POOLED * before) / (tried[i] + POOLED))
  return np.array(found)


def chances(tries: np.ndarray, hits: np.ndarray, now: np.ndarray) -> np.ndarray:
  """f64[B, N], what `pooled` gives for all rows, of each row: its own rounds count most."""
  return (hits + OWN * now) / (tries + OWN)


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

  What is usual moves only where something was seen in the last rounds: a node that was not drafted
  is not thought of as worse, and a request that drafts no more is not counted again and again.

  Args:
    widths: nodes of each size, the root included, rising.
    narrow: whether rounds in which no row has a guess cost what they cost without drafts.
  """

  def __init__(self, widths: Sequence[int], narrow: bool):
    self.widths, self.narrow, self.choices, self._last = widths, narrow, 0, 0
    # Moving averages of what was seen of each node, and of whether it was seen.
    self._sum, self._weight = np.zeros((2, widths[-1]))

  @property
  def usual(self) -> np.ndarray:
    """f64[N], as of `pooled`, of requests so far."""
    found: list[float] = []
    seen = zip(self._sum.tolist(), self._weight.tolist(), strict=True)
    for i, (total, weight) in enumerate(seen):
      unseen = (1.0, PRIOR)[i] if i < 2 else found[-1]
      found.append((total + UNKNOWN * unseen) / (weight + UNKNOWN))
    return np.array(found)

  def _remember(self, tries: np.ndarray, hits: np.ndarray) -> None:
    """What rows that are live have seen, of nodes that their last draft could have."""
    tried, drafted = tries.sum(0), self.widths[self._last] if self._last else 0
    share = np.where(np.arange(len(tried)) < drafted, USUAL * tried / (tried + POOLED), 0.0)
    self._weight += share * (1 - self._weight)
    self._sum += share * (hits.sum(0) / np.maximum(tried, 1e-9) - self._sum)

  def __call__(self, prices: np.ndarray, state: Any) -> tuple[int, float]:
    tries, hits, live = (np.asarray(x, float) for x in (state.tries, state.hits, state.live))
    tries, hits = (x[live > 0] for x in (tries, hits))
    self._remember(tries, hits)
    own = chances(tries, hits, pooled(tries, hits, self.usual))
    gains = np.minimum(np.cumprod(own, 1), 1.0).sum(0)
    gains[0] = len(own)
    if self.narrow:
      prices = prices[0] + (1 - np.prod(1 - own[:, 0])) * (prices - prices[0])
    size = best(self.widths, prices, gains)
    self.choices += 1
    self._last = min(size + (self.choices % TRY == 0), len(self.widths) - 1)
    return self._last, float(prices[self._last])


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
    params: Params,
    target_params: Params,
    state: Any,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    own = whole.update(params, target_params, state.own, draft, evaluation, verdict, rows)
    live, node = rows > 0, jnp.arange(N)[None]
    walked = jnp.arange(verdict.path.shape[1])[None] <= verdict.count[:, None]
    hit = ((verdict.path[..., None] == node[None]) & walked[..., None]).any(1)
    width, some = draft.tokens.shape[1], draft.valid[:, 1:].any(1, keepdims=True)
    before = jnp.pad(hit[:, :-1], ((0, 0), (1, 0)))
    tried = jnp.where(node > 0, some & (node < width) & before, width > 1)
    hit = jnp.where(node > 0, hit, some)

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
