"""What a round costs with drafts of each size, for a drafter that chooses among them by load.

`serving.timing` times rounds; what they take later, beside other work, with longer texts or with
drafts that find little, corrects the prices.

Letters: B batch, C sizes.
"""

from collections.abc import Sequence

import numpy as np

ROUNDS = 4  # after which another size of draft may be chosen
SEEN, UNSEEN = 0.2, 0.02  # how far a price goes to what rounds took, and that of another size
MOST = 3.0  # times its price, as which longer rounds count


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

  def learn(self, B: int, size: int, seconds: float) -> None:
    """A round of B rows took so long.

    Sizes that are not run follow slowly, so that neither a busy machine nor one long round decides
    for good which of them is run.
    """
    factors = self._factors[B]
    ratio = seconds / self._timed[B][size]
    factors[size] += SEEN * (min(ratio, MOST * factors[size]) - factors[size])
    factors += UNSEEN * (factors[size] - factors)
