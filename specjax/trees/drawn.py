"""Trees whose children are drawn from a head's distribution, so that rules which know it accept more.

Letters: B batch, N nodes, W nodes of one level, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft
from specjax.sampling import DRAFT, Source
from specjax.trees.paths import Step, take_rows
from specjax.trees.static import from_choices
from specjax.trees.structure import at

NEVER = -jnp.inf


class Drawn(NamedTuple):
  """A fixed shape whose children are drawn.

  Attributes:
    choices: rank paths, see `trees.static`.
    how: "iid" (SpecInfer), "without_replacement" (without replacement: RSD-C, Sequoia) or "mixed" (greedy
      drafting, Hu et al. 2025, arXiv 2502.18779: of k children one is drawn from what the k - 1
      likeliest leave).
  """

  choices: tuple[tuple[int, ...], ...]
  how: Literal["iid", "without_replacement", "mixed"]


def _children(
  log_probs: Array, count: int, how: str, stream: int, noise: Source
) -> tuple[Array, Array, Array]:
  """(tokens, valid, chosen) [B, W, count] of nodes with distributions f32[B, W, V]."""
  rank = jnp.arange(count)[None, None]
  support = (log_probs > NEVER).sum(-1, keepdims=True)
  if how == "mixed":
    likeliest = jax.lax.top_k(log_probs, count)[1][..., : count - 1].astype(jnp.int32)
    top = jax.nn.one_hot(likeliest, log_probs.shape[-1], dtype=bool).any(-2)
    rest = jnp.where(top, NEVER, log_probs)
    rest = jax.nn.log_softmax(jnp.where(support >= count, rest, log_probs))
    drawn = noise.children(stream, rest, 1, True)
    tokens = jnp.concatenate([drawn, likeliest], -1)
    # Without a token left to draw, the first place is empty.
    valid = jnp.where(rank == 0, support >= count, rank <= support)
    return tokens, valid, jnp.broadcast_to(rank > 0, tokens.shape)
  tokens = noise.children(stream, log_probs, count, how == "without_replacement")
  valid = rank < support if how == "without_replacement" else jnp.ones(tokens.shape, bool)
  return tokens, jnp.broadcast_to(valid, tokens.shape), jnp.zeros(tokens.shape, bool)


def draw(
  tree: Drawn,
  root: Array,
  step: Step,
  log_probs_of: Callable[[Array], Array],
  noise: Source,
  carry: Any = (),
  memory: Any = (),
) -> Draft:
  """Fills the tree; a node whose distribution has fewer tokens than it has children leaves some not valid.

  Args:
    tree: static.
    root: i32[B, 1].
    step: the head, see `trees.paths.Step`.
    law_of: logits f32[B, W, .] -> log-probabilities f32[B, W, V] over the target's ids.
    noise: what draws.
    carry, memory: see `Step`.
  """
  static = from_choices(tree.choices)
  B, N = root.shape[0], len(static.parent)
  above = np.eye(N, dtype=bool)
  for node in range(1, N):
    above[node] |= above[static.parent[node]]

  def same(index) -> Array:
    return jnp.broadcast_to(jnp.asarray(index, jnp.int32), (B, len(index)))

  tokens, valid = root, jnp.ones((B, 1), bool)
  chosen = jnp.zeros((B, 1), bool)
  distributions: dict[int, Array] = {}
  expanded, before = np.zeros(0, int), np.zeros(0, int)
  for level in range(int(static.depth.max())):
    nodes = np.flatnonzero(static.depth == level + 1)
    inner = np.unique(static.parent[nodes])
    if level:
      carry = take_rows(carry, same(np.searchsorted(before, static.parent[inner])))
    expanded, before = np.concatenate([expanded, inner]), inner
    mask = jnp.broadcast_to(above[np.ix_(inner, expanded)], (B, len(inner), len(expanded)))
    logits, carry, memory = step(level, at(tokens, same(inner)), carry, memory, mask)
    log_probs = log_probs_of(jnp.broadcast_to(logits, (B, len(inner), logits.shape[-1])))
    drawn = []  # nodes with the same number of children together
    number = np.bincount(static.parent[nodes], minlength=N)[inner]
    for count in np.unique(number):
      which = np.flatnonzero(number == count)
      stream = DRAFT + level * N + int(count)
      drawn.append(
        (inner[which], _children(log_probs[:, which], int(count), tree.how, stream, noise))
      )
    distributions |= {int(n): log_probs[:, i] for i, n in enumerate(inner)}
    place = {int(n): (g, i) for g, (ids, _) in enumerate(drawn) for i, n in enumerate(ids)}

    def pick(part: int, nodes=nodes, drawn=drawn, place=place) -> Array:
      columns = []
      for node in nodes:
        group, i = place[int(static.parent[node])]
        columns.append(drawn[group][1][part][:, i, int(static.rank[node])])
      return jnp.stack(columns, 1)

    tokens = jnp.concatenate([tokens, pick(0)], 1)
    valid = jnp.concatenate([valid, pick(1)], 1)
    chosen = jnp.concatenate([chosen, pick(2)], 1)
  V = next(iter(distributions.values())).shape[-1]
  never = jnp.full((B, V), NEVER)
  rows = jnp.stack([distributions.get(n, never) for n in range(N)], 1)
  return Draft(
    tokens, same(static.parent), same(static.depth), valid, rows,
    chosen if tree.how == "mixed" else None,
  )  # fmt: skip
