"""Fixed trees whose children are drawn from a head's distribution, for verifiers that read q.

Letters: B batch, N nodes, W nodes of one level, R children of a node, V vocabulary.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft, Proposal
from specjax.distributed import top_k
from specjax.sampling import DRAFT, NoiseSource
from specjax.trees.base import NEVER, Guesser
from specjax.trees.static import Static, ask_level, levels, rows_of

Children = tuple[Array, Array]
"""(tokens i32[B, W, R] by rank, valid bool[B, W, R]: False where a distribution has too few)."""


@dataclasses.dataclass(frozen=True)
class Drawn(Static):
  """A fixed shape whose children are drawn in the way that a class below says."""

  how: ClassVar[Proposal]

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.choices:
      raise ValueError(f"`choices` must be at least one path, got {self.choices}.")

  @property
  def proposal(self) -> Proposal:
    return "chain" if not self.shape.rank.any() else self.how

  def children(self, log_probs: Array, count: int, stream: int, noise: NoiseSource) -> Children:
    """R = `count` children of each node, from its distribution f32[B, W, V]."""
    raise NotImplementedError

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    sampling, shape = guesser.drawing(self), self.shape
    B, N = root.shape[0], self.nodes
    tokens, valid = root, jnp.ones((B, 1), bool)
    distributions: dict[int, Array] = {}
    for depth, level in enumerate(levels(shape)):
      logits, guesser = ask_level(guesser, depth, level, tokens)
      inner, nodes = level.inner, level.children
      log_probs = guesser.distribution(logits, len(inner), sampling)
      distributions |= {int(n): log_probs[:, i] for i, n in enumerate(inner)}
      of: dict[int, Children] = {}  # the children [B, R] of each inner node
      number = np.bincount(shape.parent[nodes], minlength=N)[inner]
      for count in np.unique(number).tolist():  # nodes with equally many children together
        which = np.flatnonzero(number == count)
        stream = DRAFT + depth * N + count
        drawn, real = self.children(log_probs[:, which], count, stream, sampling.noise)
        of |= {int(n): (drawn[:, i], real[:, i]) for i, n in enumerate(inner[which])}
      columns = [[x[:, shape.rank[n]] for x in of[int(shape.parent[n])]] for n in nodes]
      drawn, real = (jnp.stack(x, 1) for x in zip(*columns, strict=True))
      tokens, valid = jnp.concatenate([tokens, drawn], 1), jnp.concatenate([valid, real], 1)
    never = jnp.full_like(distributions[0], NEVER)
    return Draft(
      tokens,
      rows_of(shape.parent, B),
      rows_of(shape.depth, B),
      valid,
      jnp.stack([distributions.get(n, never) for n in range(N)], 1),
      rows_of(shape.rank, B) > 0 if self.how == "mixed" else None,
    )


@dataclasses.dataclass(frozen=True)
class IID(Drawn):
  """Children are drawn independently and may repeat: the tree of SpecInfer.

  Miao et al. 2023 (arXiv 2305.09781). It was measured as `iid-2-2-1` at T = 0.8.

  Measured: 2.96 tokens per pass (verifiers)
  """

  how: ClassVar[Proposal] = "iid"

  def children(self, log_probs: Array, count: int, stream: int, noise: NoiseSource) -> Children:
    tokens = noise.children(stream, log_probs, count, False)
    return tokens, jnp.ones(tokens.shape, bool)


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Drawn):
  """Children are drawn without replacement: RSD-C and Sequoia.

  Jeon et al. 2024 (arXiv 2402.14160); Chen et al. 2024 (arXiv 2402.12374), whose trees `specjax
  tune --drafters eagle --method sequoia` finds. It was measured as `without_replacement-2-2-1` at T
  = 0.8.

  Measured: 2.98 tokens per pass (verifiers)
  """

  how: ClassVar[Proposal] = "without_replacement"

  def children(self, log_probs: Array, count: int, stream: int, noise: NoiseSource) -> Children:
    tokens = noise.children(stream, log_probs, count, True)
    support = (log_probs > NEVER).sum(-1, keepdims=True)
    return tokens, jnp.broadcast_to(jnp.arange(count)[None, None] < support, tokens.shape)


@dataclasses.dataclass(frozen=True)
class Mixed(Drawn):
  """The likeliest tokens, and one child that is drawn from all others.

  This is greedy drafting (Hu et al. 2025, arXiv 2502.18779).

  Of R children, R - 1 are the likeliest; the one of rank 0 is drawn. It was measured as
  `mixed-2-2-1` at T = 0.8.

  Measured: 3.00 tokens per pass (verifiers)
  """

  how: ClassVar[Proposal] = "mixed"

  def children(self, log_probs: Array, count: int, stream: int, noise: NoiseSource) -> Children:
    support = (log_probs > NEVER).sum(-1, keepdims=True)
    likeliest = top_k(log_probs, count)[1][..., : count - 1].astype(jnp.int32)
    top = jax.nn.one_hot(likeliest, log_probs.shape[-1], dtype=bool).any(-2)
    rest = jnp.where(top, NEVER, log_probs)
    rest = jax.nn.log_softmax(jnp.where(support >= count, rest, log_probs))
    tokens = jnp.concatenate([noise.children(stream, rest, 1, True), likeliest], -1)
    # Where no token is left to draw, the first place is empty.
    rank = jnp.arange(count)[None, None]
    return tokens, jnp.where(rank == 0, support >= count, rank <= support)
