"""The pages of a cache, counted: a page that nobody uses any more is free.

Letters: P pages beside page 0, B rows, S capacity.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from specjax.base import KV
from specjax.models.cache import PagedCache
from specjax.models.pages import bare


class Pool:
  """P pages.

  Between programs it has what they hold. A program takes that as a whole, in a cache, and gives it
  back, so that it is written in its place.

  Args:
    kv: KV with arrays [P + 1, K, 64, C], of which page 0 is nobody's.
    width: S / 64.

  Attributes:
    count: P.
  """

  count: int

  def __init__(self, kv: KV, width: int):
    self._kv, self._width = kv, width
    self.count = len(kv.k[0]) - 1
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

  def lent(self, cache: PagedCache, chains: Sequence[Sequence[int]]) -> PagedCache:
    """The cache of rows that have these pages, and page 0 behind them."""
    table = np.zeros((len(cache.length), self._width), np.int32)
    for own, pages in zip(table, chains, strict=False):
      own[: len(pages)] = pages
    return PagedCache(self._kv, jnp.asarray(table), cache.length)

  def back(self, cache: PagedCache) -> PagedCache:
    """What rows have of a cache for themselves; the pool keeps the rest."""
    self._kv = cache.kv
    return bare(cache)
