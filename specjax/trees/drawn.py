"""Children of these trees are drawn from a head's distribution: rules that know it accept more.

Letters: B batch, N nodes, W nodes of one level, R children of a node, V vocabulary.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import DRAFT, Source
from specjax.trees.base import NEVER, Guesser
from specjax.trees.static import Static, ask_level, levels, rows_of


class Children(NamedTuple):
  """The children of W nodes, in the order of their ranks.

  Attributes:
    tokens: i32[B, W, R].
    valid: bool[B, W, R], False where a distribution has too few tokens.
    chosen: bool[B, W, R], see `Draft.chosen`.
  """

  tokens: Array
  valid: Array
  chosen: Array


@dataclasses.dataclass(frozen=True)
class Drawn(Static):
  """A fixed shape whose children are drawn in the way that a class below says."""

  how: ClassVar[Proposal]

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.choices:
      raise ValueError(f"choices={self.choices}: a drawn tree has one path or more.")

  @property
  def proposal(self) -> Proposal:
    return "chain" if not self.shape.rank.any() else self.how

  def children(self, log_probs: Array, count: int, stream: int, noise: Source) -> Children:
    """`count` children of each node, from its distribution f32[B, W, V]."""
    raise NotImplementedError

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    sampling, shape = guesser.drawing(self), self.shape
    B, N = root.shape[0], self.nodes
    alone = jnp.ones((B, 1), bool)
    drafted = Children(root, alone, ~alone)
    distributions: dict[int, Array] = {}
    for depth, level in enumerate(levels(shape)):
      logits, guesser = ask_level(guesser, depth, level, drafted.tokens)
      inner, nodes = level.inner, level.children
      log_probs = guesser.distribution(logits, len(inner), sampling)
      distributions |= {int(n): log_probs[:, i] for i, n in enumerate(inner)}
      of: dict[int, Children] = {}  # the children [B, R] of each inner node
      number = np.bincount(shape.parent[nodes], minlength=N)[inner]
      for count in np.unique(number).tolist():  # nodes with equally many children together
        which = np.flatnonzero(number == count)
        stream = DRAFT + depth * N + count
        drawn = self.children(log_probs[:, which], count, stream, sampling.noise)
        of |= {int(n): Children(*(x[:, i] for x in drawn)) for i, n in enumerate(inner[which])}
      columns = [Children(*(x[:, shape.rank[n]] for x in of[int(shape.parent[n])])) for n in nodes]
      below = (jnp.stack(x, 1) for x in zip(*columns, strict=True))
      drafted = Children(*map(lambda x, y: jnp.concatenate([x, y], 1), drafted, below))
    never = jnp.full_like(distributions[0], NEVER)
    return Draft(
      drafted.tokens, rows_of(shape.parent, B), rows_of(shape.depth, B), drafted.valid,
      jnp.stack([distributions.get(n, never) for n in range(N)], 1),
      drafted.chosen if self.how == "mixed" else None,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class IID(Drawn):
  """Children are drawn alike and may repeat (SpecInfer, Miao et al. 2023, arXiv 2305.09781)."""

  how: ClassVar[Proposal] = "iid"

  def children(self, log_probs: Array, count: int, stream: int, noise: Source) -> Children:
    tokens = noise.children(stream, log_probs, count, False)
    return Children(tokens, jnp.ones(tokens.shape, bool), jnp.zeros(tokens.shape, bool))


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Drawn):
  """Children differ (RSD-C, Jeon et al. 2024, 2402.14160; Sequoia, Chen et al., 2402.12374)."""

  how: ClassVar[Proposal] = "without_replacement"

  def children(self, log_probs: Array, count: int, stream: int, noise: Source) -> Children:
    tokens = noise.children(stream, log_probs, count, True)
    support = (log_probs > NEVER).sum(-1, keepdims=True)
    valid = jnp.broadcast_to(jnp.arange(count)[None, None] < support, tokens.shape)
    return Children(tokens, valid, jnp.zeros(tokens.shape, bool))


@dataclasses.dataclass(frozen=True)
class Mixed(Drawn):
  """One of R children is drawn from what the R - 1 likeliest, which are chosen, leave.

  This is greedy drafting (Hu et al. 2025, arXiv 2502.18779). Rank 0 is drawn.
  """

  how: ClassVar[Proposal] = "mixed"

  def children(self, log_probs: Array, count: int, stream: int, noise: Source) -> Children:
    rank = jnp.arange(count)[None, None]
    support = (log_probs > NEVER).sum(-1, keepdims=True)
    likeliest = jax.lax.top_k(log_probs, count)[1][..., : count - 1].astype(jnp.int32)
    top = jax.nn.one_hot(likeliest, log_probs.shape[-1], dtype=bool).any(-2)
    rest = jnp.where(top, NEVER, log_probs)
    rest = jax.nn.log_softmax(jnp.where(support >= count, rest, log_probs))
    drawn = noise.children(stream, rest, 1, True)
    tokens = jnp.concatenate([drawn, likeliest], -1)
    # Without a token left to draw, the first place is empty.
    valid = jnp.where(rank == 0, support >= count, rank <= support)
    return Children(tokens, valid, jnp.broadcast_to(rank > 0, tokens.shape))
