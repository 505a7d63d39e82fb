"""The acceptance and speed-up of rules in theory: exact figures for given p and q, and bounds.

p f[..., V] is the distribution of the target and q f[..., V] the one that a draft is drawn from, in
float64 and normalised, at one node or, for an expected length, at every node of the draft. Leading
axes are independent cases. `count` is k, and `length` the number of drafted tokens; expected tokens
include the one after the accepted tokens.

Letters: V vocabulary, k siblings, T arrival times.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Distribution = NDArray[np.float64]

_BISECTIONS = 60
_MOST_DRAFTS = 1_000_000
_MOST_TYPES = 100_000
_STEP = 0.25  # of the logarithm of T; the trapezoidal rule is then right to about 1e-15


def optimal_acceptance(p: ArrayLike, q: ArrayLike, count: int, how: str) -> Distribution:
  """alpha* f[...], the largest probability of accepting a sibling that any exact rule can reach.

  It solves an optimal transport with membership cost (Sun et al. 2023, arXiv 2310.15141), whose
  dual is alpha* = 1 + min over sets H of p(H) - Pr(all siblings lie in H). With tokens sorted by
  q / p, descending, the best H is a prefix (Hu et al. 2025, arXiv 2502.18779).

  The siblings are drafted as `how` says: "iid", "without_replacement", "mixed" (the top k - 1 of q
  and one drawn from the rest) or "deterministic" (the top k of q). Ties go to the lower id. Where q
  supports fewer than k tokens, "without_replacement" and "mixed" drafts stop at those.

  Raises:
    ValueError: `how` is unknown, or the count is below one.
  """
  return _siblings(_OPTIMA, "how", how, p, q, count)


def acceptance(p: ArrayLike, q: ArrayLike, count: int, rule: str) -> Distribution:
  """Probability f[...] that a rule accepts one of the siblings at a node.

  The rule is recursive rejection of siblings that are "iid", "without_replacement", "mixed" or
  "deterministic" (which is target-only verification of the top k of q), or "k_seq" of independent
  ones. "without_replacement" goes through all ordered drafts and is for small V and k only.

  Raises:
    ValueError: the rule is unknown, the count below one, or there are over a million such drafts.
  """
  return _siblings(_RULES, "rule", rule, p, q, count)


def uniform_chain(a: ArrayLike, length: int) -> Distribution:
  """Expected tokens f[...] of a chain, (1 - a^(length+1)) / (1 - a).

  Every token is accepted with probability a f[...], independently.
  """
  return np.power.outer(np.asarray(a, float), np.arange(length + 1)).sum(-1)


def chain_length(p: ArrayLike, q: ArrayLike, length: int) -> Distribution:
  """Expected tokens f[...] of a drawn chain under token verification: the chain is uniform."""
  return uniform_chain(acceptance(p, q, 1, "iid"), length)


def block_length(p: ArrayLike, q: ArrayLike, length: int) -> Distribution:
  """Expected tokens f[...] of a drawn chain under block verification, 1 + sum_i E[c_i].

  Sun et al. 2025 (arXiv 2403.10444): c_i = min(1, c_{i-1} p / q) is the probability that i tokens
  or more are accepted. log c_i is a reflected walk, distributed as the minimum of the free walk, so
  that by Spitzer's identity i E[c_i] = sum_{m=1..i} B_m E[c_{i-m}] with B_m the mass of
  min(p^m, q^m) over sequences of m tokens. Permutations of a sequence are counted together.

  Raises:
    ValueError: there are more than 100000 multisets of `length` tokens.
  """
  p, q = np.broadcast_arrays(np.asarray(p, float), np.asarray(q, float))
  types = math.comb(p.shape[-1] + length - 1, length)
  if types > _MOST_TYPES:
    raise ValueError(
      f"{types} multisets of {length} tokens out of {p.shape[-1]} are too many to "
      f"go through; at most {_MOST_TYPES} are."
    )
  c, overlaps = np.ones((1, *p.shape[:-1])), np.ones((0, *p.shape[:-1]))  # c_0.., B_m descending
  for i in range(1, length + 1):
    overlaps = np.concatenate([_overlap(p, q, i)[None], overlaps])
    c = np.concatenate([c, (overlaps * c).sum(0, keepdims=True) / i])
  return c.sum(0)


def tree_length(p: ArrayLike, q: ArrayLike, branching: Sequence[int], rule: str) -> Distribution:
  """Expected tokens f[...] of a tree in which every node of depth d has branching[d] children.

  It is 1 + the sum over depths of the probability of reaching them, a product of `acceptance`.
  Nodes count by themselves; `k_seq`, which joins those of one text, accepts more.
  """
  tokens = reached = np.ones(())
  for count in branching:
    reached = reached * acceptance(p, q, count, rule)
    tokens = tokens + reached
  return tokens


def expected_speed_up(
  tau: ArrayLike,
  draft_cost: ArrayLike,
  sequential: ArrayLike,
  verify_cost: ArrayLike = 1.0,
  overhead: ArrayLike = 0.0,
) -> Distribution:
  """Speed-up f[...] over plain decoding, tau / (sequential * draft_cost + verify_cost + overhead).

  A round yields tau tokens. In units of a target pass over one token, `draft_cost` is a pass of the
  drafter, `verify_cost` the target's pass over the draft, and `overhead` all else. `sequential` is
  the number of drafter passes: a chain's length, a tree's depth, or 1 for parallel heads.
  """
  time = np.multiply(sequential, draft_cost) + np.add(verify_cost, overhead)
  return np.divide(np.asarray(tau, float), time)


def best_length(
  a: float, draft_cost: float, most: int = 64, verify: Callable[[int], float] | ArrayLike = 1.0
) -> int:
  """The chain length with the highest expected speed-up; 0 where plain decoding is as good.

  See `uniform_chain` for a and `expected_speed_up` for the costs. `most` is the longest length, and
  `verify` the cost of a target pass over n tokens: a function of n, f[most + 1] from n = 1 on, or a
  number for all n.
  """
  lengths = np.arange(most + 1)
  cost = [verify(n + 1) for n in range(most + 1)] if callable(verify) else verify
  tau = np.cumsum(float(a) ** lengths)
  return int(np.argmax(expected_speed_up(tau, draft_cost, lengths, cost)))


def _siblings(table, what: str, name: str, p: ArrayLike, q: ArrayLike, count: int) -> Distribution:
  if name not in table:
    raise ValueError(f"`{what}` must be one of {', '.join(table)}, got {name!r}.")
  if count < 1:
    raise ValueError(f"`count` must be at least 1, as a node needs a sibling, got {count}.")
  return table[name](*np.broadcast_arrays(np.asarray(p, float), np.asarray(q, float)), count)


def _normal(probs: Distribution) -> Distribution:
  """Rows of unit mass; a row without mass stays as it is."""
  mass = probs.sum(-1, keepdims=True)
  return probs / np.where(mass > 0, mass, 1.0)


def _overlap(p: Distribution, q: Distribution, length: int) -> Distribution:
  """f[...]: mass of min(p, q) over sequences of independent tokens."""
  vocabulary = np.arange(p.shape[-1])
  ids = np.array(list(itertools.combinations_with_replacement(vocabulary, length)))
  log_factorial = np.array([math.lgamma(n + 1) for n in range(length + 1)])
  repeats = (ids[..., None] == vocabulary).sum(1)
  orders = np.exp(log_factorial[length] - log_factorial[repeats].sum(-1))
  return (orders * np.minimum(p[..., ids].prod(-1), q[..., ids].prod(-1))).sum(-1)


def _descending(key: Distribution, *distributions: Distribution) -> list[Distribution]:
  order = np.argsort(-key, -1, kind="stable")
  return [np.take_along_axis(probs, order, -1) for probs in distributions]


def _best_drawn(p: Distribution, q: Distribution, count: int, distinct: bool) -> Distribution:
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    ratio = np.where(q > 0, q / p, 0.0)
  p, q = _descending(ratio, p, q)
  inside = _inside(q, count) if distinct else np.cumsum(q, -1) ** count
  return 1 + np.minimum((np.cumsum(p, -1) - inside).min(-1), 0.0)


def _inside(q: Distribution, count: int) -> Distribution:
  """f[..., V]: probability that k distinct tokens drawn from q are among the first 1..V.

  Draws without replacement are a race of exponential clocks with rates q. All lie in H if at least
  k clocks of H ring before the first one outside it, at T ~ Exp(q(outside H)): an integral over T
  of a Poisson-binomial tail. In log T the integrand is smooth and vanishes at both ends, however
  small a rate is; in exp(-q(outside) T) it would have fractional powers.
  """
  outside = np.zeros_like(q)
  outside[..., :-1] = np.cumsum(q[..., :0:-1], -1)[..., ::-1]
  smallest = outside.min(initial=1.0, where=outside > 1e-300)
  times = np.exp(np.arange(-20.0, math.log(40 / smallest), _STEP))
  rung = np.zeros((*q.shape[:-1], len(times), count))  # probability of 0..k-1 clocks of H by T
  rung[..., 0] = 1.0
  inside = np.ones_like(q)
  for n in range(q.shape[-1]):
    rings = -np.expm1(-q[..., n, None] * times)[..., None]
    before, rung = rung, rung * (1 - rings)
    rung[..., 1:] += before[..., :-1] * rings
    rate = outside[..., n, None] * times
    inside[..., n] = _STEP * ((1 - rung.sum(-1)) * rate * np.exp(-rate)).sum(-1)
  return np.where(outside > 0, inside, 1.0)  # 1 where H holds all of q


def _mixed(p: Distribution, q: Distribution, count: int) -> Distribution:
  p, q = _descending(q, np.where(q > 0, p, 0.0), q)
  chosen, rest = np.split(p, [count - 1], -1)
  return chosen.sum(-1) + np.minimum(rest, _normal(q[..., count - 1 :])).sum(-1)


def _recursive_iid(p: Distribution, q: Distribution, count: int) -> Distribution:
  # The residual does not depend on which token was refused, so one recursion covers all drafts.
  refused = np.ones(p.shape[:-1])
  for _ in range(count):
    p = np.maximum(p - q, 0.0)
    refused = refused * p.sum(-1)
    p = _normal(p)
  return 1 - refused


def _recursive_distinct(p: Distribution, q: Distribution, count: int) -> Distribution:
  V = p.shape[-1]
  if V**count > _MOST_DRAFTS:
    raise ValueError(
      f"{V}**{count} ordered drafts are too many to go through; at most {_MOST_DRAFTS} are."
    )
  p, q = p[..., None, :], q[..., None, :]  # [..., drafts so far, V]
  weight, accepted = np.ones(p.shape[:-1]), np.zeros(p.shape[:-2])
  for tried in range(count):
    accepted = accepted + (weight * np.minimum(p, q).sum(-1)).sum(-1)
    if tried + 1 < count:
      refused = weight[..., None] * np.maximum(q - p, 0.0)
      weight = refused.reshape(*refused.shape[:-2], -1)
      p = np.repeat(_normal(np.maximum(p - q, 0.0)), V, -2)
      q = _normal((q[..., None, :] * (1 - np.eye(V))).reshape(p.shape))
  return accepted


def _k_seq(p: Distribution, q: Distribution, count: int) -> Distribution:
  """1 - (1 - beta)^k at the smallest rho with 1 - (1 - beta)^k <= rho beta."""

  def beta(rho: Distribution) -> Distribution:
    return np.minimum(q, p / rho[..., None]).sum(-1)

  low, high = np.ones(p.shape[:-1]), np.full(p.shape[:-1], float(count))
  for _ in range(_BISECTIONS):
    rho = (low + high) / 2
    b = beta(rho)
    enough = 1 - (1 - b) ** count <= rho * b
    low, high = np.where(enough, low, rho), np.where(enough, rho, high)
  return 1 - (1 - beta(high)) ** count


_OPTIMA: dict[str, Callable[..., Distribution]] = {
  "iid": functools.partial(_best_drawn, distinct=False),
  "without_replacement": functools.partial(_best_drawn, distinct=True),
  "mixed": _mixed,
  "deterministic": lambda p, q, count: _descending(q, p)[0][..., :count].sum(-1),
}  # fmt: skip
_RULES = _OPTIMA | {
  "iid": _recursive_iid,
  "without_replacement": _recursive_distinct,
  "k_seq": _k_seq,
}
