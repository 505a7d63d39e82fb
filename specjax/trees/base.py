"""The contract of a tree: a shape that knows its size and fills itself with a head's guesses.

A head guesses the children of a node from what it carries there. A tree asks it level by level and
lays the guesses out as a `Draft`; the same head therefore fills any tree, and a tree any head's.

Letters: B batch, N nodes, D depth, W nodes of one level, M expanded nodes, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import Settings, Source, warp

NEVER = -jnp.inf  # the log-probability of what cannot be drawn


class Step(Protocol):
  """A head, asked for the children of one level's nodes.

  It is called for level = 0..D - 1 (static) with the nodes of that level which get children, the
  root at level 0; tokens i32[B, W] are the target's ids. The logits f32[B, W or 1, V] are for the
  token after each node, over the head's own vocabulary; one row serves all where they do not depend
  on the node. `carry` is a pytree of [B, W, ...] that follows each node down to its children.
  `memory` is passed on whole, for a head that keeps a row of every expanded node: mask
  bool[B, W, M] says which of the M rows expanded so far, its own level's included, are a node or
  above it.
  """

  def __call__(
    self, level: int, tokens: Array, carry: Any, memory: Any, mask: Array, /
  ) -> tuple[Array, Any, Any]: ...


class Sampling(NamedTuple):
  """What drawn trees need: how a round draws, and over which ids.

  Attributes:
    settings: turn logits into the distribution q; they are the target's own.
    noise: draws.
    vocab_size: V of the target.
  """

  settings: Settings
  noise: Source
  vocab_size: int

  def log_probs(self, logits: Array, ids: Array | None) -> Array:
    """f32[B, W, V] over the target's ids, of logits over a head's own, see `Tree.fill`."""
    log_probs = warp(logits, self.settings)
    if ids is None:
      return log_probs
    whole = jnp.full((*log_probs.shape[:-1], self.vocab_size), NEVER)
    return whole.at[..., ids].set(log_probs)


class Tree(Protocol):
  """A shape of drafts; hashable, since it is static where a method is compiled.

  Attributes:
    nodes: N, the root included.
    depth: D, levels below the root.
    proposal: how its tokens come about.
  """

  def __hash__(self) -> int: ...
  @property
  def nodes(self) -> int: ...
  @property
  def depth(self) -> int: ...
  @property
  def proposal(self) -> Proposal: ...

  def fill(
    self, root: Array, step: Step, carry: Any = (), memory: Any = (), ids: Array | None = None,
    sampling: Sampling | None = None,
  ) -> Draft:  # fmt: skip
    """A draft of this shape; siblings that are chosen differ from each other.

    Args:
      root: i32[B, 1], the newest committed token.
      step: the head.
      carry: pytree of [B, 1, ...], the root's.
      memory: any pytree, see `Step`.
      ids: i32[V'], the target ids of a reduced draft vocabulary; None where they are the target's.
      sampling: is read by drawn trees only.

    Raises:
      ValueError: a drawn tree got no `sampling`.
    """
    ...


def independent(logits: Array) -> Step:
  """A head whose guesses do not depend on each other: logits f32[B, D, V], a row for each depth."""

  def step(level: int, tokens: Array, carry: Any, memory: Any, mask: Array):
    return logits[:, level, None], carry, memory

  return step


def in_target_ids(guesses: Array, ids: Array | None) -> Array:
  """Guesses i32[..] of a draft vocabulary as the target's ids, see `Tree.fill`."""
  guesses = guesses.astype(jnp.int32)
  return guesses if ids is None else jnp.take(ids, guesses, axis=0)


def needed(sampling: Sampling | None, tree: Tree) -> Sampling:
  """The sampling, which a drawn tree cannot do without."""
  if sampling is None:
    raise ValueError(f"tree={tree}: drawn trees need sampling, the settings and the noise.")
  return sampling


def check_size(tree: Tree, width: str, formula: str, most: int) -> None:
  """Refuses a searched tree that cannot have its nodes.

  Args:
    tree: has the field `width`, which is how many nodes the search keeps.
    formula, most: how many nodes it sees at most, in words and as a number.
  """
  if min(tree.depth, getattr(tree, width)) < 1 or not tree.depth < tree.nodes <= most:
    raise ValueError(f"tree={tree}: accepted are depth and {width} of 1 or more and more nodes "
                     f"than depth, at most {formula} = {most}.")  # fmt: skip
