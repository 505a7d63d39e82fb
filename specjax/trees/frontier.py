"""Drawn trees can have another shape each round: a level keeps the most promising of its draws.

What decides whether a draw is kept must be known before its token is (or, for stochastic beams,
must be independent of it given the draws before): looking first and keeping then is biased under
any rule that uses q.

Letters: B batch, N nodes, D depth, W nodes kept per level, K children of a node, V vocabulary.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import DRAFT, Source
from specjax.trees.base import NEVER, Guesser
from specjax.trees.structure import at


def level_sizes(width: int, depth: int, children: int) -> list[int]:
  """Nodes of every level below the root: `width` at most, and `children` of each node above."""
  sizes = [1]
  for _ in range(depth):
    sizes.append(min(width, sizes[-1] * children))
  return sizes[1:]


class Expansion(NamedTuple):
  """The children of one level's nodes, [B, W, K].

  Attributes:
    tokens: i32, in the order of drawing.
    key: f32, by which W of the level are kept; falls from sibling to sibling, -inf for none.
    values: pytree, what the kept ones hand on to their own expansion.
  """

  tokens: Array
  key: Array
  values: Any


class Expand(Protocol):
  """The children of a level, from its nodes' log_probs f32[B, W, V] and their values [B, W]."""

  def __call__(self, level: int, log_probs: Array, values: Any, /) -> Expansion: ...


def draw_levels(tree: Any, expand: Expand, values: Any, root: Array, guesser: Guesser) -> Draft:
  """N = 1 + sum(level_sizes) nodes, level by level; what a level leaves over is not valid.

  Args:
    tree: `trees.base.Tree` whose field `width` is W (static).
    expand, values: how children come about, and the root's values.
    root, guesser: see `trees.base.Tree.fill`.
  """
  B, sampling = root.shape[0], guesser.drawing(tree)
  tokens, above = root, jnp.ones((B, 1, 1), bool)
  live = jnp.ones((B, 1), bool)
  values = jax.tree.map(lambda x: jnp.full((B, 1), x, jnp.float32), values)
  parts: list[tuple[Array, ...]] = []  # tokens, parents, valid, distributions of each level
  first = 0  # number of the level's first node
  for level in range(tree.depth):
    logits, guesser = guesser.ask(level, tokens, above)
    W = tokens.shape[1]
    log_probs = guesser.distribution(logits, W, sampling)
    children = expand(level, log_probs, values)
    K = children.tokens.shape[2]
    key = jnp.where(live[..., None], children.key, NEVER).reshape(B, W * K)
    kept = jnp.sort(jax.lax.top_k(key, min(tree.width, W * K))[1], 1)  # siblings stay in order
    flat = jax.tree.map(lambda x: x.reshape(B, -1), (children.tokens, children.values))
    tokens, values = jax.tree.map(lambda x: at(x, kept), flat)  # noqa: B023
    live = at(key, kept) > NEVER
    above_row = kept // K
    parts.append((tokens, first + above_row, live, log_probs))
    guesser, above = guesser.below(above_row, above)
    first += W
  depths = np.repeat(np.arange(1, tree.depth + 1), [p[0].shape[1] for p in parts])
  N, V = 1 + len(depths), parts[0][3].shape[-1]
  distributions = jnp.concatenate([p[3] for p in parts], 1)
  leaves = jnp.full((B, N - distributions.shape[1], V), NEVER)
  top = jnp.zeros((B, 1), jnp.int32)
  return Draft(
    jnp.concatenate([root, *(p[0] for p in parts)], 1),
    jnp.concatenate([top, *(p[1].astype(jnp.int32) for p in parts)], 1),
    jnp.broadcast_to(jnp.asarray([0, *depths], jnp.int32), (B, N)),
    jnp.concatenate([jnp.ones((B, 1), bool), *(p[2] for p in parts)], 1),
    jnp.concatenate([distributions, leaves], 1),
  )


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
