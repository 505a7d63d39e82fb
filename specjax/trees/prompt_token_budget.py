"""How many guesses each node of a tree is given where a guess costs a row in the verifying pass.

Methods that guess in the verifying pass (`heads.pseudo_rows`) pay for the guesses of every node but
use those of the last accepted node alone. If that node has m guesses, the next round drafts a tree
T_m of m levels: the first of one tree, or one of its own (`by_guesses`). Rounds are a Markov chain
over m = 0..D.

This is parallel prompt decoding (arXiv 2405.18628, section 3.2 and its appendix on the dynamic
sparse tree), under the independence assumption of `trees.static.best_first`.

Letters: N nodes, D depth of the tree, R ranks, X trials.
"""

import numpy as np

from specjax import checks
from specjax.trees.base import Counts
from specjax.trees.by_guesses import ByGuesses
from specjax.trees.static import Choices, Static, best_first, from_choices


def accepted_last(choices: Choices, hit_rates: np.ndarray) -> np.ndarray:
  """f64[D + 1, N]: entry m, v is the probability that node v of T_m is the last one accepted.

  Args:
    hit_rates: f[D or more, R], how often rank r of depth d + 1 is right given that its parent is;
      no row sums to more than 1.

  Raises:
    ValueError: hit rates that are not such rates or do not cover the tree.
  """
  tree = from_choices(choices)
  N, D = len(tree.parent), int(tree.depth.max())
  rates = np.asarray(hit_rates, np.float64)
  if rates.ndim != 2 or len(rates) < D or rates.shape[1] <= tree.rank.max():
    raise ValueError(
      f"hit_rates of shape {rates.shape}: the tree has {D} levels and {tree.rank.max() + 1} ranks."
    )
  if (rates < 0).any() or (rates.sum(1) > 1 + 1e-6).any():
    raise ValueError("hit_rates must be 0 or more, and those of one depth sum to 1 at most.")
  reached, onward = np.ones(N), np.zeros(N)
  for v in range(1, N):
    above, rate = tree.parent[v], rates[tree.depth[v] - 1, tree.rank[v]]
    reached[v] = reached[above] * rate
    onward[above] += rate
  m, depth = np.arange(D + 1)[:, None], tree.depth[None]
  here = np.where(depth < m, reached * np.maximum(1 - onward, 0), reached)
  return np.where(depth <= m, here, 0)


def _rounds(tree: Choices | ByGuesses, hit_rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(`accepted_last` f64[D + 1, N] of T_0..T_D, the accepted tokens f64[D + 1] of a round)."""
  if not isinstance(tree, ByGuesses):
    last = accepted_last(tree, hit_rates)
    return last, last @ from_choices(tree).depth
  last = np.zeros(tree.shapes.depth.shape)
  for m, choices in enumerate(tree.trees):
    last[m, : len(choices) + 1] = accepted_last(choices, hit_rates)[-1]
  return last, (last * tree.shapes.depth).sum(1)


def _lengths(counts: np.ndarray, last: np.ndarray, accepted: np.ndarray) -> np.ndarray:
  """f64[X], `expected_length` of counts i[X, N], given what `_rounds` returns."""
  step = last @ (counts[:, :, None] == np.arange(len(last))).astype(np.float64)
  # step[:, 0] becomes the share of rounds that draft T_m after a first round that drafts nothing.
  # Lazy rounds have the same shares but no cycles, so repeated squaring converges.
  step = (step + np.eye(len(last))) / 2
  for _ in range(40):
    step = step @ step
    step = step / step.sum(-1, keepdims=True)
  return step[:, 0] @ accepted


def in_order(counts: np.ndarray) -> np.ndarray:
  """i[N] or [D + 1, N], the nodes as their pseudo rows follow each other in the pass.

  Where each T_m has counts of its own, nodes with many rows come first in all of them: the counts
  in this order are the same for every m, and a program can be compiled for them.
  """
  if counts.ndim == 1:
    return np.arange(len(counts))
  return np.argsort(-counts, axis=1, kind="stable")


def expected_length(tree: Choices | ByGuesses, hit_rates: np.ndarray, counts: Counts) -> float:
  """Accepted draft tokens per round, in the long run, of a tree with `counts` guesses per node."""
  (last, accepted), table = _rounds(tree, hit_rates), np.array(counts)
  order = in_order(table)
  last = np.take_along_axis(last, np.broadcast_to(order, last.shape), 1)
  number = np.take_along_axis(table, order, -1).reshape(-1, last.shape[1])[:1]
  return float(_lengths(number, last, accepted)[0])


def _least_missed(
  last: np.ndarray, accepted: np.ndarray, budget: int, falling: bool = False
) -> np.ndarray:
  """i[N], `budget` guesses that remain of D for each of N nodes; `falling` keeps them sorted."""
  checks.whole("budget", budget, 1, note="the root needs one guess")
  D, N = len(last) - 1, last.shape[1]
  counts, least = np.full(N, D), (np.arange(N) == 0) * min(1, D)
  while counts.sum() > budget:
    spare = counts > least
    if falling:
      spare &= counts > np.append(counts[1:], 0)
    removable = np.flatnonzero(spare)[::-1]
    trials = counts - (np.arange(N) == removable[:, None])
    counts = trials[np.argmax(_lengths(trials, last, accepted))]
  return counts


def allocate(choices: Choices, hit_rates: np.ndarray, budget: int = 24) -> tuple[int, ...]:
  """Shares `budget` guesses out to the nodes of one tree.

  From all possible guesses the one is removed, again and again, without which `expected_length`
  stays longest, of the last node among equals. This greedy search may miss the best allocation.

  Returns N numbers of guesses, 0 to D, in the order of `from_choices`.

  Args:
    hit_rates: see `accepted_last`.
    budget: 1 or more; the root keeps at least one, or nothing would ever be drafted.
  """
  return tuple(_least_missed(*_rounds(choices, hit_rates), budget).tolist())


def allocate_trees(
  hit_rates: np.ndarray, nodes: int, budget: int = 24
) -> tuple[ByGuesses, tuple[tuple[int, ...], ...]]:
  """The best tree T_m of `nodes` nodes for each number m of guesses, and guesses of its nodes.

  All T_m have the same numbers of guesses, most where the round is likeliest to end. They are found
  as in `allocate`.

  Returns (T_0..T_D, the numbers of guesses of their nodes, [D + 1, N]).
  """
  D = max(map(len, best_first(hit_rates, nodes)), default=0)
  tree = ByGuesses([(), *(best_first(hit_rates[:m], nodes) for m in range(1, D + 1))])
  last, accepted = _rounds(tree, hit_rates)
  order = np.argsort(-last, axis=1, kind="stable")
  found = _least_missed(np.take_along_axis(last, order, 1), accepted, budget, falling=True)
  counts = np.empty_like(order)
  np.put_along_axis(counts, order, np.broadcast_to(found, order.shape), 1)
  return tree, tuple(map(tuple, counts.tolist()))


def share_rows(
  hit_rates: np.ndarray, nodes: int, budget: int = 24, own: bool = False
) -> tuple[Static | ByGuesses, Counts]:
  """Shares `budget` pseudo rows out to the nodes, in place of one set for every node.

  Without, `hidden_transfer` accepts 2.68 at 0.82x.

  Measured: 2.42 tokens per pass, 0.83x (trees)

  Returns (the best tree of `nodes` nodes, the pseudo rows of each), see `allocate`.

  Args:
    own: whether each number of guesses has a tree of its own, as published, in place of the first
      levels of one tree; see `allocate_trees`.
  """
  if own:
    return allocate_trees(hit_rates, nodes, budget)
  choices = best_first(hit_rates, nodes)
  return Static(choices), allocate(choices, hit_rates, budget)
