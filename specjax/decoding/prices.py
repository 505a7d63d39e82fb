"""What a round costs with drafts of each size, for a drafter that chooses among them by load.

`serving.timing` times rounds; what they take later, beside other work, with longer texts or with
drafts that find little, corrects the prices.

Letters: B batch, C sizes.
"""

from collections.abc import Sequence

import numpy as np

ROUNDS = 4  # after which another size of draft may be chosen
# As which power of what rounds took over what was expected a price changes: that of every size, for
# the machine and the texts are slower alike, and that of their size once more; by a half for the
# first such rounds, a third for the next ones, and so on, for it was timed in one second.
ALL, OWN = 0.2, 0.1
MOST = 2.0  # times what was expected, as which longer rounds count


class Prices:
  """What a round costs, by its rows and the size of its draft, as far as is known now.

  Args:
    seconds: f64[C] for each B, as they were timed.
  """

  def __init__(self, batches: Sequence[int], seconds: np.ndarray):
    self._timed = dict(zip(batches, np.asarray(seconds, float), strict=True))
    self._factors = {B: np.ones(len(row)) for B, row in self._timed.items()}
    self._seen = {B: np.zeros(len(row)) for B, row in self._timed.items()}

  def of(self, B: int) -> np.ndarray:
    """Seconds f64[C] of a round of B rows."""
    return self._timed[B] * self._factors[B]

  def learn(self, B: int, size: int, ratio: float) -> None:
    """Rounds of B rows took `ratio` times what was expected of them.

    So neither a busy machine nor one long round decides which size is run. What was learnt of a
    size stays until it is run again.
    """
    factors, error = self._factors[B], min(ratio, MOST)
    factors *= error**ALL
    self._seen[B][size] += 1
    factors[size] *= error ** max(OWN, 1 / (1 + self._seen[B][size]))
