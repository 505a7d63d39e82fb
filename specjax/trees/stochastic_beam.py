"""Stochastic beam search draws whole paths without replacement.

Letters: B batch, N nodes, D depth, W paths, V vocabulary.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import DRAFT, Source
from specjax.trees.base import NEVER, Guesser
from specjax.trees.frontier import Expand, Expansion, draw_levels, level_sizes


@dataclasses.dataclass(frozen=True)
class StochasticBeam:
  """RSD-S (Jeon et al. 2024, arXiv 2402.14160, section 3.2.2).

  Attributes:
    width: W, paths; V at most.
    depth: D. N is 1 + W D.
  """

  width: int
  depth: int
  proposal: ClassVar[Proposal] = "without_replacement"

  def __post_init__(self) -> None:
    if min(self.width, self.depth) < 1:
      raise ValueError(f"tree={self}: accepted are numbers of 1 or more.")

  @property
  def nodes(self) -> int:
    return 1 + sum(level_sizes(self.width, self.depth, self.width))

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    expand, values = perturbed(self, guesser.drawing(self).noise)
    return draw_levels(self, expand, values, root, guesser)


def _log1mexp(x: Array) -> Array:
  """log(1 - exp(x)) for x <= 0."""
  near = x > -0.6931472
  return jnp.where(near, jnp.log(-jnp.expm1(jnp.where(near, x, -1.0))),
                   jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))))  # fmt: skip


def perturbed(tree: StochasticBeam, noise: Source) -> tuple[Expand, Any]:
  """Perturbed path log-probabilities, those of children capped at their parent's.

  Kool et al. 2019 (arXiv 1903.06059, section 4.2), in their stable form. The values are (log q of
  the path, its perturbed value), both 0 at the root.
  """

  def expand(level: int, log_probs: Array, values) -> Expansion:
    path, bound = values
    reach = path[..., None] + log_probs
    noisy = reach + noise.gumbel(DRAFT + level, log_probs.shape)
    top = noisy.max(-1, keepdims=True)
    real = noisy > NEVER
    gap = jnp.where(real, noisy - top, -1.0)
    v = jnp.where(real, bound[..., None] - noisy + _log1mexp(jnp.minimum(gap, -1e-30)), 0.0)
    capped = bound[..., None] - jnp.maximum(v, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(v)))
    capped = jnp.where(noisy == top, bound[..., None], capped)
    key, tokens = jax.lax.top_k(
      jnp.where(real, capped, NEVER), min(tree.width, log_probs.shape[-1])
    )
    tokens = tokens.astype(jnp.int32)
    return Expansion(tokens, key, (jnp.take_along_axis(reach, tokens, -1), key))

  return expand, (0.0, 0.0)
