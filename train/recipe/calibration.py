"""How good predicted probabilities are. Letters: P predictions."""

from typing import Any

import numpy as np


def reliability(predicted: np.ndarray, chance: np.ndarray) -> dict[str, Any]:
  """How far predicted probabilities f[P] are from the true ones f[P], in ten bins.

  Returns:
    `ece`, the expected calibration error: the mean over P of |mean predicted - mean true| in the
    bin; and `bins`, (count, mean predicted, mean true) of those that are not empty.
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
  """AUC: the share of pairs (right, wrong) in which right scores higher; equal scores count 1/2."""
  _, place, count = np.unique(score, return_inverse=True, return_counts=True)
  rank = (np.cumsum(count) - (count - 1) / 2)[place]
  n, m = int(right.sum()), int((~right).sum())
  return float((rank[right].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def passing(passed: np.ndarray, right: np.ndarray) -> dict[str, float]:
  """Precision and recall of the predictions bool[P] that pass, of which bool[P] are right."""
  hit = int((passed & right).sum())
  return {
    "precision": round(hit / max(int(passed.sum()), 1), 4),
    "recall": round(hit / max(int(right.sum()), 1), 4),
  }


def threshold(said: np.ndarray, right: np.ndarray, precision: float) -> float:
  """The least threshold above which a share `precision` of probabilities f[P] is `right` bool[P].

  Where there is none, only the largest probability passes.
  """
  order = np.argsort(-said, kind="stable")
  said, share = said[order], np.cumsum(right[order]) / np.arange(1, len(order) + 1)
  last = np.append(said[1:] != said[:-1], True)  # equal probabilities pass together
  good = np.flatnonzero((share >= precision) & last)
  return float(np.nextafter(np.float32(said[good[-1] if len(good) else 0]), np.float32(0)))
