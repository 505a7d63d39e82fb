"""The draft with the most expected tokens per second, out of chains and trees of all sizes.

The idea is Sequoia's hardware-aware choice of a tree (Chen et al. 2024, arXiv 2402.12374). A round
takes v(N) + d seconds, v(N) of the target over N nodes and d of the drafter, and adds 1 + E tokens
to each row of a batch. `trees.static.expected_length` gives E, the expected accepted tokens.

Letters: B batch, N tree nodes, D depth, R ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.eval import metrics
from specjax.names import grammar
from specjax.names.build.drafters import ROWS
from specjax.names.grammar import Part
from specjax.trees import prompt_token_budget, static
from specjax.trees.static import as_tuples, best_first

NODES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
PLAIN = "none"
Paths = tuple[tuple[int, ...], ...]


class Candidate(NamedTuple):
  """A draft that could be made in every round.

  Attributes:
    name: as a user types it.
    tree: rank paths; () for plain decoding.
    accepted: E.
    guesses: pseudo rows of each node, where the head guesses in such rows.
  """

  name: str
  tree: Paths
  accepted: float
  guesses: tuple[int, ...] = ()

  @property
  def nodes(self) -> int:
    return len(self.tree) + 1

  @property
  def depth(self) -> int:
    return max(map(len, self.tree), default=0)

  @property
  def size(self) -> tuple[int, ...]:
    """What the time of drafting grows with."""
    return (1, self.depth, self.nodes, sum(self.guesses))


def candidates(head: Part, rates: np.ndarray, pseudo: bool = False) -> list[Candidate]:
  """Chains of all depths and trees of NODES with the best guesses, as the rates f[D, R] allow.

  Args:
    head: without numbers and decorations.
    pseudo: whether the head guesses in pseudo rows; a tree then has as many rows as nodes, half as
      many again, or one for every guess that could be used.
  """
  whole = best_first(rates, max(NODES))
  chains = [(Part("static", (1,) * len(chain)), chain) for chain in _chains(len(rates))]
  found = [(head._replace(decorations=(part,)), chain) for part, chain in chains]
  found += [
    (head._replace(numbers=(len(tree) + 1,)), tree)
    for tree in _trees(lambda nodes: whole[: nodes - 1], len(rates))
  ]
  if not pseudo:
    return [Candidate(grammar.show([p]), t, static.expected_length(t, rates)) for p, t in found]
  return [c for part, tree in found for c in _shared_out(part, tree, rates)]


def _chains(depth: int) -> list[Paths]:
  return [as_tuples([(0,) * d for d in range(1, D + 1)]) for D in range(1, depth + 1)]


def _trees(best: Callable[[int], Sequence], depth: int) -> list[Paths]:
  """The best trees of NODES, where there are such, that are no chains."""
  trees = [as_tuples(best(nodes)) for nodes in NODES]
  chains = list(map(set, _chains(depth)))
  return [t for n, t in zip(NODES, trees, strict=True) if len(t) + 1 == n and set(t) not in chains]


def _shared_out(part: Part, tree: Paths, rates: np.ndarray) -> list[Candidate]:
  """A tree with all pseudo rows that could be used, and with fewer."""
  rows, *_ = ROWS  # that share them out; others end the chain
  nodes = len(tree) + 1
  every = (max(map(len, tree)),) * nodes
  found = [(part, every)]
  for budget in (nodes, nodes + nodes // 2):
    if part.numbers and budget < sum(every):
      named = part._replace(decorations=(Part(rows, (budget,)),))
      found.append((named, prompt_token_budget.allocate(tree, rates, budget)))
  return [
    Candidate(grammar.show([p]), tree, prompt_token_budget.expected_length(tree, rates, g), g)
    for p, g in found
  ]


def drawn(
  name: Callable[[Paths], str], rates: np.ndarray, best: Callable[[int], Sequence]
) -> list[Candidate]:
  """Chains, and the trees that `best` gives for numbers of nodes, all with drawn children."""
  trees = [*_chains(len(rates)), *_trees(best, len(rates))]
  return [Candidate(name(tree), tree, static.expected_length(tree, rates)) for tree in trees]


def expected(candidate: Candidate, seconds: float, batch: int) -> float:
  """Tokens per second of all rows in rounds of `seconds`."""
  return metrics.tokens_per_second(batch * (1 + candidate.accepted), seconds)


def spread(items: Sequence[Any], most: int) -> list[Any]:
  """At most `most` of the items, the first and the last among them, evenly spaced."""
  return [items[i] for i in sorted(set(np.linspace(0, len(items) - 1, most).round().astype(int)))]


def fitted(
  known: Sequence[Candidate], seconds: Sequence[float], of: Sequence[Candidate]
) -> list[float]:
  """Drafting seconds of candidates, linear in their sizes, from those that were measured."""
  weights, *_ = np.linalg.lstsq(
    np.array([c.size for c in known], float), np.array(seconds), rcond=None
  )
  return np.maximum(np.array([c.size for c in of], float) @ weights, 0).tolist()
