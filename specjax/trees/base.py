"""The contract of a tree: a shape that knows its size and fills itself with a head's guesses.

A head guesses the children of a node from what it carries there. A tree asks the head level by
level and arranges the guesses as a `Draft`, so every head fills every tree.

Letters: B batch, N nodes, D depth, W nodes of one level, M expanded nodes, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.distributed import shard_batch, top_k
from specjax.sampling import NoiseSource, Settings, warp
from specjax.trees.structure import take_rows

NEVER = -jnp.inf  # the log-probability of what cannot be drawn
# Pseudo rows of N nodes, see `prompt_token_budget`; or of those of T_0..T_D, see `by_guesses`.
Counts = tuple[int, ...] | tuple[tuple[int, ...], ...]


class Step(Protocol):
  """A head, asked for the children of one level's nodes.

  It is called for level = 0..D - 1 (static) with the nodes of that level which get children, the
  root at level 0; tokens i32[B, W] are the target's ids. It returns logits f32[B, W or 1, V] over
  the head's own vocabulary, for the token after each node (one row where they do not depend on the
  node), `carry` and `memory`. `carry` is a pytree of [B, W, ...] that follows each node to its
  children. `memory` is passed on whole, for a head that keeps a row of every expanded node: mask
  bool[B, W, M] says which of the M nodes expanded so far, this level's included, a node is or hangs
  below.
  """

  def __call__(
    self, level: int, tokens: Array, carry: Any, memory: Any, mask: Array, /
  ) -> tuple[Array, Any, Any]: ...


class Chance(Protocol):
  """f32[B, W], how likely a token that is drawn after each node is accepted, in a head's own words;
  it is asked for what `Step` is asked, before it."""

  def __call__(self, level: int, tokens: Array, carry: Any, memory: Any, /) -> Array: ...


class Sampling(NamedTuple):
  """What a drawn tree needs: the target's settings, which turn logits into q, the noise, and V."""

  settings: Settings
  noise: NoiseSource
  vocab_size: int


class Guesser(NamedTuple):
  """A head as it stands at the nodes of a level, at first at the root.

  Attributes:
    step, carry, memory: see `Step`.
    ids: i32[V'], the target ids of a reduced draft vocabulary, or None.
    sampling: for drawn trees only.
    chance: see its type; None where the head does not say.
    known: i32[B], how many tokens ahead it guesses; None where it is as many as it is asked for.
  """

  step: Step
  carry: Any = ()
  memory: Any = ()
  ids: Array | None = None
  sampling: Sampling | None = None
  chance: Chance | None = None
  known: Array | None = None

  def ask(self, level: int, tokens: Array, mask: Array) -> tuple[Array, "Guesser"]:
    """(logits, the head after its step), see `Step`."""
    logits, carry, memory = self.step(level, tokens, self.carry, self.memory, mask)
    return logits, self._replace(carry=carry, memory=memory)

  def below(self, parent: Array, mask: Array) -> tuple["Guesser", Array]:
    """The head at W' children, and their mask, which follows `mask` bool[B, W, M].

    Args:
      parent: i32[B, W'], which of the W nodes each child hangs below.
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
    """The likeliest guesses after W `nodes`, best first; R is `most`, or V' where that is less.

    Returns:
      (log-probabilities f32[B, W, R], -inf for NaN; the target's ids i32[B, W, R]).
    """
    rows = jax.nn.log_softmax(shard_batch(logits.astype(jnp.float32)))
    rows = jnp.where(jnp.isnan(rows), NEVER, rows)
    log_probs, guesses = top_k(rows, min(most, rows.shape[-1]))
    shape = (len(rows), nodes, log_probs.shape[-1])
    return jnp.broadcast_to(log_probs, shape), jnp.broadcast_to(self.named(guesses), shape)

  def drawing(self, tree: "Tree") -> Sampling:
    """The sampling; ValueError where it is absent and `tree` needs it."""
    if self.sampling is None:
      raise ValueError(f"tree={tree}: drawn trees need sampling, the settings and the noise.")
    return self.sampling

  def distribution(self, logits: Array, nodes: int, sampling: Sampling) -> Array:
    """log q f32[B, W, V] over the target's ids, after W `nodes`."""
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
    proposal: how its tokens are found, see `Proposal`.
  """

  def __hash__(self) -> int: ...
  @property
  def nodes(self) -> int: ...
  @property
  def depth(self) -> int: ...
  @property
  def proposal(self) -> Proposal: ...

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    """A draft of this shape below `root` i32[B, 1]; siblings that are chosen differ."""
    ...


def independent(logits: Array) -> Step:
  """A head whose guesses do not depend on each other, from its logits f32[B, D, V] by depth."""

  def step(level: int, tokens: Array, carry: Any, memory: Any, mask: Array):
    return logits[:, level, None], carry, memory

  return step


def check_size(tree: Tree, width: str, formula: str, most: int) -> None:
  """Raises ValueError where a search cannot find the nodes of a tree.

  Args:
    width: the tree's field that says how many nodes the search keeps.
    formula, most: the most nodes that the search sees, in words and as a number.
  """
  if min(tree.depth, getattr(tree, width)) < 1 or not tree.depth < tree.nodes <= most:
    raise ValueError(
      f"`tree` must have depth and {width} of at least 1, and more nodes than depth but at most "
      f"{formula} = {most}, got {tree}."
    )
