"""Minimum non-negative sums: signs for m numbers that make their sum least, but not negative.

The task MNNS of Gozeten et al. 2025, arXiv 2505.23648. A trace is the m partial sums under some
signs. The sum s is token s + S, where S is m times the largest number; a number is the token of
that sum, and token 2 S + 1, behind the numbers, asks for the first step.

Letters: R problems, m numbers of each, M steps, V vocabulary.
"""

import itertools
from typing import NamedTuple

import numpy as np

from specjax import checks


class Examples(NamedTuple):
  """Problems, and what is learned of each step.

  Attributes:
    tokens: i32[R, m + 1].
    target: f32[R, M, V], the distribution of each step's token; the last one's is the answer.
  """

  tokens: np.ndarray
  target: np.ndarray


def problems(numbers: int, largest: int, count: int, seed: int) -> np.ndarray:
  """i32[R, m]: `count` different ones of m = `numbers` numbers from 1 on; all if there are fewer.

  Raises:
    ValueError: a number is out of range.
  """
  checks.whole("numbers", numbers, 2, 8)
  checks.whole("largest", largest, 2, 50)
  every = largest**numbers
  some = np.random.default_rng(seed).choice(
    every, min(checks.whole("count", count, 1), every), False
  )
  return np.stack(np.unravel_index(some, (largest,) * numbers), -1).astype(np.int32) + 1


def split(some: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """(to train on, held out): problems of the same numbers in other orders are on one side.

  Raises:
    ValueError: one side is empty.
  """
  kinds, of = np.unique(np.sort(some, 1), axis=0, return_inverse=True)
  out = np.random.default_rng(seed).permutation(len(kinds))[: round(share * len(kinds))]
  held = np.isin(of.reshape(-1), out)
  if held.all() or not held.any():
    raise ValueError(f"`held_out` must leave problems on both sides, got {share}.")
  return some[~held], some[held]


def traces(some: np.ndarray) -> np.ndarray:
  """i32[R, 2^m, m], the partial sums of problems i32[R, m] under all signs: those of the least sum
  first that is not negative, and the negative ones last."""
  signs = np.array([*itertools.product((1, -1), repeat=some.shape[1])], np.int32)
  found = np.cumsum(some[:, None] * signs[None], -1, dtype=np.int32)
  last = found[..., -1]
  order = np.argsort(np.where(last < 0, np.iinfo(np.int32).max, last), -1, kind="stable")
  return np.take_along_axis(found, order[..., None], 1)


def vocabulary(numbers: int, largest: int) -> int:
  """V."""
  return 2 * numbers * largest + 2


def examples(some: np.ndarray, largest: int, followed: int) -> Examples:
  """Problems i32[R, m], and the mean of their best `followed` traces at each of M = m steps; the
  last step, and with 0 traces the only one, has the answer."""
  (R, m), best = some.shape, traces(some)
  top, V = m * largest, vocabulary(m, largest)
  tokens = np.concatenate([some + top, np.full((R, 1), V - 1)], 1).astype(np.int32)
  target = np.zeros((R, m, V), np.float32)
  rows, steps = np.arange(R)[:, None, None], np.arange(m)[None, None]
  np.add.at(target, (rows, steps, best[:, : max(followed, 1)] + top), 1 / max(followed, 1))
  target[:, -1] = np.eye(V, dtype=np.float32)[best[:, 0, -1] + top]
  return Examples(tokens, target if followed else target[:, -1:])
