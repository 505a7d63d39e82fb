"""How good predicted probabilities are, against what is true. Letters: P predictions."""

from typing import Any

import numpy as np


def reliability(predicted: np.ndarray, chance: np.ndarray) -> dict[str, Any]:
  """How far predicted probabilities f[P] are from the true ones f[P], by the predicted tenth.

  Returns:
    `ece`, the expected calibration error: the mean over P of |mean predicted - mean true| in the
    bin; and `bins`, (count, mean predicted, mean true) from 0 upwards without the empty ones.
  """
  place = np.minimum((predicted * 10).astype(int), 9)
  bins = [
    (int(here.sum()), float(predicted[here].mean()), float(chance[here].mean()))
    for here in (place == i for i in range(10))
    if here.any()
  ]
  ece = sum(n * abs(p - y) for n, p, y in bins) / len(predicted)
  return {"ece": round(ece, 4), "bins": [(n, round(p, 4), round(y, 4)) for n, p, y in bins]}


def area(score: np.ndarray, right: np.ndarray) -> float:
  """AUC: how often a right one f[P] scores above a wrong one, where equal scores count a half."""
  _, place, count = np.unique(score, return_inverse=True, return_counts=True)
  rank = (np.cumsum(count) - (count - 1) / 2)[place]
  n, m = int(right.sum()), int((~right).sum())
  return float((rank[right].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def passing(passed: np.ndarray, right: np.ndarray) -> dict[str, float]:
  """Of predictions bool[P] that pass, the share that is right; of the right ones, that passes."""
  hit = int((passed & right).sum())
  return {
    "precision": round(hit / max(int(passed.sum()), 1), 4),
    "recall": round(hit / max(int(right.sum()), 1), 4),
  }


def threshold(said: np.ndarray, right: np.ndarray, precision: float) -> float:
  """The least threshold above which `precision` of all are right; the highest if none is.

  Args:
    said: f[P], probabilities.
    right: bool[P].
    precision: a share.
  """
  order = np.argsort(-said, kind="stable")
  share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
  # Equal probabilities pass together.
  last = np.append(said[order][1:] != said[order][:-1], True)
  good = np.flatnonzero((share >= precision) & last)
  at = said[order][good[-1]] if len(good) else said.max()
  return float(np.nextafter(np.float32(at), np.float32(0)))
