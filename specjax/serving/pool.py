"""The pages of texts, counted: a page that nobody uses any more is free.

A page has 64 rows of a text in every cache of a state, the target's and the drafter's own.

Letters: P pages beside page 0, B rows, S capacity.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import pages

State = TypeVar("State")


class Pool:
  """P pages.

  Between programs it has what they hold. A program takes that as a whole, in its state's caches,
  and gives it back, so that it is written in its place.

  Args:
    kvs: of each cache a KV with arrays [P + 1, K, 64, C], of which page 0 is nobody's.
    width: S / 64.

  Attributes:
    count: P.
  """

  count: int

  def __init__(self, kvs: Sequence[Any], width: int):
    self._kvs, self._width = kvs, width
    self.count = len(jax.tree.leaves(kvs)[0]) - 1
    self._uses = [0] * (self.count + 1)
    self._free = list(range(self.count, 0, -1))

  @property
  def free(self) -> int:
    """How many pages nobody uses."""
    return len(self._free)

  def uses(self, page: int) -> int:
    """How many use a page."""
    return self._uses[page]

  def take(self) -> int:
    """A page that nobody used, for one user; IndexError where there is none."""
    page = self._free.pop()
    self._uses[page] = 1
    return page

  def hold(self, page: int) -> int:
    """The page, which has one more user."""
    self._uses[page] += 1
    return page

  def drop(self, page: int) -> None:
    """One user leaves the page."""
    self._uses[page] -= 1
    if not self._uses[page]:
      self._free.append(page)

  def lent(self, state: State, chains: Sequence[Sequence[int]]) -> State:
    """The state of rows whose caches have these pages, and page 0 behind them."""
    table = np.zeros((len(pages.caches(state)[0].length), self._width), np.int32)
    for own, chain in zip(table, chains, strict=False):
      own[: len(chain)] = chain
    # One for each: a program that takes a buffer over takes it once.
    return pages.filled(state, self._kvs, [jnp.array(table) for _ in self._kvs])

  def back(self, state: State) -> State:
    """What rows have of a state for themselves; the pool keeps the rest."""
    self._kvs = [cache.kv for cache in pages.caches(state)]
    return pages.bare(state)
