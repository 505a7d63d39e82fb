"""Where in a row a head drafts while it learns, and what it should say there.

Letters: R rows, B rows of a batch, T row length, M drafting positions of a row, D depth.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax.base import Features
from specjax.data.packing import Rows
from specjax.drafters.base import Examples


class Batch(NamedTuple):
  """A step's examples.

  Attributes:
    examples: the rows and where the head drafts, M points each.
    labels: i32[B, M, D], the token at `at` + d + 1.
    weight: bool[B, M, D], whether that token is trained; False at points that only fill up.
  """

  examples: Examples
  labels: np.ndarray
  weight: np.ndarray


def candidates(rows: Rows, depth: int) -> tuple[np.ndarray, np.ndarray]:
  """What could be said at every position: labels i32[R, T, D], weight bool[R, T, D].

  Depth d counts where the token at t + d + 1 is trained and of the text that t belongs to.
  """
  T = rows.tokens.shape[1]
  later = np.arange(T)[:, None] + np.arange(2, depth + 2)
  inside, at = later < T, np.minimum(later, T - 1)
  same = rows.segment[:, at] == rows.segment[:, :, None]
  return np.where(inside, rows.tokens[:, at], 0), inside & rows.mask[:, at] & same


class Source:
  """Batches of drafting positions, a function of the step alone."""

  def __init__(self, rows: Rows, features: Features, depth: int, points: int, seed: int):
    """Rows [R, T], their features [R, T, E], D, M and the seed of the choice."""
    self.rows, self.features, self.points, self.seed = rows, features, points, seed
    self.labels, self.weight = candidates(rows, depth)
    self.useful = [np.flatnonzero(x) for x in self.weight[:, :, 0]]

  def take(self, turns: Sequence[tuple[int, np.ndarray]], batch: int) -> Batch:
    """Up to B turns, each a row and the points from which it is drafted, at most M."""
    at, real = (np.zeros((batch, self.points), kind) for kind in (int, bool))
    chosen = np.zeros(batch, int)
    for b, (r, points) in enumerate(turns):
      chosen[b], at[b, : len(points)], real[b, : len(points)] = r, points, True
    features: Any = jax.tree.map(lambda x: np.asarray(x[chosen]), self.features)
    tokens, position, segment, _ = (x[chosen] for x in self.rows)
    examples = Examples(tokens, position, segment, features, at.astype(np.int32))  # type: ignore[arg-type]  # numpy until it is on the device
    row = chosen[:, None]
    return Batch(examples, self.labels[row, at], self.weight[row, at] & real[:, :, None])

  def sample(self, chosen: np.ndarray, step: int) -> Batch:
    """The batch of a step: M points of each row, all different where a row has as many."""
    rng = np.random.default_rng([self.seed, step])

    def some(points: np.ndarray) -> np.ndarray:
      return np.sort(rng.choice(points, min(self.points, len(points)), replace=False))

    return self.take([(r, some(self.useful[r])) for r in chosen], len(chosen))

  def every(self, batch: int):
    """Batches that hold every point of every row once, for measuring."""
    turns = [
      (r, points[i : i + self.points])
      for r, points in enumerate(self.useful)
      for i in range(0, len(points), self.points)
    ]
    for i in range(0, len(turns), batch):
      yield self.take(turns[i : i + batch], batch)
