"""The contract of a tree: a shape that knows its size and fills itself with a head's guesses.

A head guesses the children of a node from what it carries there. A tree asks it level by level and
lays the guesses out as a `Draft`; the same head therefore fills any tree, and a tree any head's.

Letters: B batch, N nodes, D depth, W nodes of one level, M expanded nodes, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.sampling import Settings, Source, warp
from specjax.trees.structure import take_rows

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


class Guesser(NamedTuple):
  """A head as it stands at the nodes of a level, at first at the root.

  Attributes:
    step: asks the head.
    carry: pytree of [B, W, ...].
    memory: any pytree, see `Step`.
    ids: i32[V'], the target ids of a reduced draft vocabulary; None where they are the target's.
    sampling: is read by drawn trees only.
  """

  step: Step
  carry: Any = ()
  memory: Any = ()
  ids: Array | None = None
  sampling: Sampling | None = None

  def ask(self, level: int, tokens: Array, mask: Array) -> tuple[Array, "Guesser"]:
    """(logits, the head after that), see `Step`."""
    logits, carry, memory = self.step(level, tokens, self.carry, self.memory, mask)
    return logits, self._replace(carry=carry, memory=memory)

  def below(self, parent: Array, mask: Array) -> tuple["Guesser", Array]:
    """At the children of its nodes: itself and the mask that follows `mask` bool[B, W, M].

    Args:
      parent: i32[B, W'], which of the W nodes each of the level hangs below.
    """
    B, W = parent.shape
    carry, mask = take_rows((self.carry, mask), parent)
    own = jnp.broadcast_to(jnp.eye(W, dtype=bool), (B, W, W))
    return self._replace(carry=carry), jnp.concatenate([mask, own], 2)

  def named(self, guesses: Array) -> Array:
    """Guesses i32[..] of a draft vocabulary as the target's ids."""
    guesses = guesses.astype(jnp.int32)
    return guesses if self.ids is None else jnp.take(self.ids, guesses, axis=0)

  def best(self, logits: Array, nodes: int, most: int) -> tuple[Array, Array]:
    """The R likeliest guesses, best first, of W `nodes`; R is `most` or the size of the vocabulary.

    Returns:
      (log-probabilities f32[B, W, R], -inf for NaN; the target's ids i32[B, W, R]).
    """
    rows = jax.nn.log_softmax(logits.astype(jnp.float32))
    rows = jnp.where(jnp.isnan(rows), NEVER, rows)
    log_probs, guesses = jax.lax.top_k(rows, min(most, rows.shape[-1]))
    shape = (len(rows), nodes, log_probs.shape[-1])
    return jnp.broadcast_to(log_probs, shape), jnp.broadcast_to(self.named(guesses), shape)

  def drawing(self, tree: "Tree") -> Sampling:
    """The sampling, which a drawn tree cannot do without."""
    if self.sampling is None:
      raise ValueError(f"tree={tree}: drawn trees need sampling, the settings and the noise.")
    return self.sampling

  def distribution(self, logits: Array, nodes: int, sampling: Sampling) -> Array:
    """log q f32[B, W, V] over the target's ids, after each of W `nodes`."""
    B, _, own = logits.shape
    log_probs = warp(jnp.broadcast_to(logits, (B, nodes, own)), sampling.settings)
    if self.ids is None:
      return log_probs
    whole = jnp.full((B, nodes, sampling.vocab_size), NEVER)
    return whole.at[..., self.ids].set(log_probs)


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

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    """A draft of this shape; siblings that are chosen differ from each other.

    Args:
      root: i32[B, 1], the newest committed token.
      guesser: says what follows it.

    Raises:
      ValueError: a drawn tree got no `Guesser.sampling`.
    """
    ...


def independent(logits: Array) -> Step:
  """A head whose guesses do not depend on each other: logits f32[B, D, V], a row for each depth."""

  def step(level: int, tokens: Array, carry: Any, memory: Any, mask: Array):
    return logits[:, level, None], carry, memory

  return step


def check_size(tree: Tree, width: str, formula: str, most: int) -> None:
  """Refuses a searched tree that cannot have its nodes.

  Args:
    tree: has the field `width`, which is how many nodes the search keeps.
    formula, most: how many nodes it sees at most, in words and as a number.
  """
  if min(tree.depth, getattr(tree, width)) < 1 or not tree.depth < tree.nodes <= most:
    raise ValueError(f"tree={tree}: accepted are depth and {width} of 1 or more and more nodes "
                     f"than depth, at most {formula} = {most}.")  # fmt: skip
