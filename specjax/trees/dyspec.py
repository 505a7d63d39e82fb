"""DySpec draws a child where the draft expects it to be reached.

Letters: B batch, N nodes, D depth, W nodes kept per level, K children of a node, V vocabulary.
"""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import DRAFT, Source
from specjax.trees.base import NEVER, Guesser
from specjax.trees.frontier import Expand, Expansion, draw_levels, level_sizes


@dataclasses.dataclass(frozen=True)
class DySpec:
  """DySpec's batched form (Xiong et al. 2025, arXiv 2410.11744, section 4.3).

  A node's next child is drawn while the chance that it would be reached and all its elder siblings
  refused, estimated by the draft's own distribution, is above `least`.

  Attributes:
    width: W, nodes kept per level; the least promising go first.
    depth: D; N is 1 + W D, less where K is below W.
    children: K of a node at most.
    least: the threshold, about 1 / N; with 0 every level is filled.
  """

  width: int
  depth: int
  children: int
  least: float = 0.0
  proposal: ClassVar[Proposal] = "without_replacement"

  def __post_init__(self) -> None:
    if min(self.width, self.depth, self.children) < 1 or not self.least >= 0:
      raise ValueError(f"tree={self}: accepted are whole numbers of 1 or more, and a threshold "
                       "of 0 or more.")  # fmt: skip

  @property
  def nodes(self) -> int:
    return 1 + sum(level_sizes(self.width, self.depth, self.children))

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    expand, values = above_threshold(self, guesser.drawing(self).noise)
    return draw_levels(self, expand, values, root, guesser)


def above_threshold(tree: DySpec, noise: Source) -> tuple[Expand, Any]:
  """The value is q of the path; a slot's is that times the mass its elder siblings left."""

  def expand(level: int, log_probs: Array, values) -> Expansion:
    (reached,) = values
    tokens = noise.children(DRAFT + level, log_probs, tree.children, True)
    q = jnp.exp(jnp.take_along_axis(log_probs, tokens, -1))
    support = (log_probs > NEVER).sum(-1, keepdims=True)
    real = jnp.arange(tree.children)[None, None] < support
    q = jnp.where(real, q, 0.0)
    slot = reached[..., None] * (1 - (jnp.cumsum(q, -1) - q))
    key = jnp.where(real & (slot > tree.least), slot, NEVER)
    return Expansion(tokens, key, (reached[..., None] * q,))

  return expand, (1.0,)
