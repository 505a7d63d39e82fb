"""The package's figures of merit, each defined once.

A figure is a function of totals over prompts or batches (numbers, or arrays of them) and never a
mean of ratios, so that an answer weighs as much as its number of tokens.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specjax.data.answers import last_number as last_number


def block_efficiency(emitted, passes):
  """tau: tokens emitted per pass of the target, with the token after the accepted ones.

  The prefill is not counted as a pass, and its token is not counted.
  """
  return emitted / passes


def tau(results: Sequence) -> dict[str, Any]:
  """Block efficiency of decoded prompts, with its 95% interval over them, ready for JSON."""
  emitted, passes = ([getattr(r, key) for r in results] for key in ("emitted", "passes"))
  interval = bootstrap_interval(block_efficiency, emitted, passes)
  return {"tau": block_efficiency(sum(emitted), sum(passes)), "tau_interval": interval}


def _at_least(rounds: ArrayLike) -> np.ndarray:
  """i[A]: the rounds of depth d or deeper, from counts i[A] or i[n, A] of those of depth d."""
  return np.cumsum(np.asarray(rounds).reshape(-1, np.shape(rounds)[-1]).sum(0)[::-1])[::-1]


def tried_by_depth(accepted: ArrayLike, offered: ArrayLike) -> list[int]:
  """The rounds that tried depth d = 1..D: they accepted d - 1 tokens of a draft at least d deep.

  The histograms give an upper bound, which is exact where every draft is empty or of full depth.

  Args:
    accepted: i[A] or i[n, A]; entry d counts the rounds that accepted d draft tokens.
    offered: the same shape; entry d counts the rounds whose draft was d deep.
  """
  return np.minimum(_at_least(accepted)[:-1], _at_least(offered)[1:]).tolist()


def acceptance_by_depth(accepted: ArrayLike, offered: ArrayLike) -> list[float | None]:
  """alpha_d = P(depth d accepted | depth d tried) for d = 1..D; None where it was never tried.

  Args: see `tried_by_depth`.
  """
  tried = tried_by_depth(accepted, offered)
  reached = _at_least(accepted)[1:]
  return [float(a / t) if t else None for a, t in zip(reached, tried, strict=True)]


def mbsu(tau, cost: float, passes: float):
  """Memory-bound speed-up, tau / (1 + c * gamma): reading the weights takes all the time.

  `cost` is c, the draft's parameters over the target's, and `passes` is gamma, the draft's mean
  passes per round.
  """
  return tau / (1 + cost * passes)


def tokens_per_second(tokens, seconds):
  """Total new tokens over total decoding time; a batch's seconds are counted once, not per row."""
  return tokens / seconds


def speed_up(tokens, seconds, plain_tokens, plain_seconds):
  """Tokens per second over plain decoding's, all four being totals."""
  return tokens_per_second(tokens, seconds) / tokens_per_second(plain_tokens, plain_seconds)


def bootstrap_interval(statistic: Callable, *columns: ArrayLike) -> tuple[float, float] | None:
  """95% percentile interval of a figure over resampled units; None for fewer than two units.

  Units (prompts, or batches where time is shared) are drawn with replacement, all columns f[n]
  together, so that a method and its baseline are compared on the same prompts. `statistic` maps
  the total of each column to the figure. The seed is fixed.
  """
  data = np.stack([np.asarray(c, float) for c in columns])
  n = data.shape[1]
  if n < 2:
    return None
  counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), 2000)
  low, high = np.quantile(statistic(*(data @ counts.T)), (0.025, 0.975))
  return float(low), float(high)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
  """95% interval of a rate of one trial or more, by Wilson's score."""
  z = 1.959964
  rate, weight = successes / trials, z * z / trials
  middle = (rate + weight / 2) / (1 + weight)
  half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / trials + weight / trials / 4)
  return max(0.0, middle - half), min(1.0, middle + half)


def ngrams(texts: Iterable[Sequence[int]], n: int) -> tuple[int, int]:
  """(different runs of n ids, all of them) in some texts; their ratio is called distinct-n."""
  every = [tuple(ids[i : i + n]) for ids in texts for i in range(len(ids) - n + 1)]
  return len(set(every)), len(every)


def first_divergence(ids: Sequence[int], reference: Sequence[int]) -> int | None:
  """Index of the first id that differs, or at which one list ends; None for equal lists."""
  end = None if len(ids) == len(reference) else min(len(ids), len(reference))
  pairs = enumerate(zip(ids, reference, strict=False))
  return next((i for i, (a, b) in pairs if a != b), end)
