"""As many rows as requests need: a loop of one row is quicker than one of 32 of which 31 are free.

The loop is compiled for a few numbers of rows when a server starts. More rows are there as soon as
requests wait for them; fewer after a while, for requests that follow each other soon.
"""

import itertools
from collections.abc import Collection, Sequence

from specjax.serving.half import Rows

PATIENCE = 8  # looks in a row at which fewer rows would have been enough


def powers(B: int) -> list[int]:
  """The powers of two below B."""
  return list(itertools.takewhile(B.__gt__, (1 << i for i in itertools.count())))


class Fitting:
  """Decides how many rows there are.

  Args:
    sizes: the numbers of rows, rising.
  """

  def __init__(self, sizes: Sequence[int]):
    self.sizes, self._calm = sizes, 0

  def fit(self, rows: Rows, held: Collection[int], requests: int) -> dict[int, int] | None:
    """Where each of the rows `held` is now, None where all is as it was, with so many requests."""
    wanted = min(requests, self.sizes[-1])
    size = next(size for size in self.sizes if size >= wanted)
    self._calm = self._calm + 1 if size < rows.count else 0
    if size <= rows.count and self._calm < PATIENCE:
      return None
    self._calm, order = 0, sorted(held)
    index = order
    for step in self._between(rows.count, size):
      rows.take([*index, *[-1] * (step - len(index))])
      index = list(range(len(order)))
    return {b: i for i, b in enumerate(order)}

  def _between(self, size: int, other: int) -> Sequence[int]:
    """The sizes from the one after `size` to `other`: so few programs change the number of rows."""
    i, j = self.sizes.index(size), self.sizes.index(other)
    return self.sizes[i + 1 : j + 1] if i < j else self.sizes[j:i][::-1]

  def compile(self, rows: Rows) -> None:
    """Runs once all that other numbers of rows need."""
    for size in [*self.sizes[1:], *self.sizes[:-1][::-1]]:
      rows.compile()
      rows.take([-1] * size)
