"""What a round costs with drafts of each size, for a drafter that chooses among them by load.

`serving.timing` times rounds; what they take later, beside other work, with longer texts or with
drafts that find little, corrects the prices.

Letters: B batch, C sizes.
"""

from collections.abc import Sequence

import numpy as np

ROUNDS = 4  # after which another size of draft may be chosen
# As which power of what rounds took over what was expected a price changes: that of every size, for
# the machine and the texts are slower alike, and that of their size once more.
ALL, OWN = 0.2, 0.1
UNSEEN = 0.02  # how far other prices go to the same multiple of what was timed
MOST = 3.0  # times what was expected, as which longer rounds count


class Prices:
  """What a round costs, by its rows and the size of its draft, as far as is known now.

  Args:
    seconds: f64[C] for each B, as they were timed.
  """

  def __init__(self, batches: Sequence[int], seconds: np.ndarray):
    self._timed = dict(zip(batches, np.asarray(seconds, float), strict=True))
    self._factors = {B: np.ones(len(row)) for B, row in self._timed.items()}

  def of(self, B: int) -> np.ndarray:
    """Seconds f64[C] of a round of B rows."""
    return self._timed[B] * self._factors[B]

  def learn(self, B: int, size: int, ratio: float) -> None:
    """Rounds of B rows took `ratio` times what was expected of them.

    So neither a busy machine nor one long round decides which size is run, and a size that was not
    run for long is thought of as off by as much as the one that is.
    """
    factors, error = self._factors[B], min(ratio, MOST)
    factors *= error**ALL
    factors[size] *= error**OWN
    factors += UNSEEN * (factors[size] - factors)
