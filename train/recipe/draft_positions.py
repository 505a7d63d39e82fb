"""Where in a row a head drafts in training, and the tokens it should guess there.

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
    examples: the rows, and M positions of each from which the head drafts.
    labels: i32[B, M, D], the token at `at` + d + 1.
    weight: bool[B, M, D], whether that token is trained; False at padding.
  """

  examples: Examples
  labels: np.ndarray
  weight: np.ndarray


def candidates(rows: Rows, depth: int) -> tuple[np.ndarray, np.ndarray]:
  """Labels i32[R, T, D] of every position t, the tokens at t + d + 1, and weights bool[R, T, D].

  The weight is True where that token is trained and belongs to the same text as t.
  """
  T = rows.tokens.shape[1]
  later = np.arange(T)[:, None] + np.arange(2, depth + 2)
  inside, at = later < T, np.minimum(later, T - 1)
  same = rows.segment[:, at] == rows.segment[:, :, None]
  return np.where(inside, rows.tokens[:, at], 0), inside & rows.mask[:, at] & same


class Source:
  """Batches of drafting positions, a function of the step alone."""

  def __init__(self, rows: Rows, features: Features, depth: int, points: int, seed: int):
    """`rows` are [R, T], their features [R, T, E]; `points` is M."""
    self.rows, self.features, self.points, self.seed = rows, features, points, seed
    self.labels, self.weight = candidates(rows, depth)
    self.useful = [np.flatnonzero(x) for x in self.weight[:, :, 0]]

  def take(self, turns: Sequence[tuple[int, np.ndarray]], batch: int) -> Batch:
    """The batch of up to B turns, each a row and up to M positions of it."""
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
    """The batch of a step: M different positions of each row, or all that it has."""
    rng = np.random.default_rng([self.seed, step])
    useful = [self.useful[r] for r in chosen]
    some = [np.sort(rng.choice(x, min(self.points, len(x)), replace=False)) for x in useful]
    return self.take(list(zip(chosen, some, strict=True)), len(chosen))

  def every(self, batch: int):
    """Batches that hold every useful position of every row once."""
    turns = [
      (r, points[i : i + self.points])
      for r, points in enumerate(self.useful)
      for i in range(0, len(points), self.points)
    ]
    for i in range(0, len(turns), batch):
      yield self.take(turns[i : i + batch], batch)
