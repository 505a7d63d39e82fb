"""Beam search over a head's guesses, and what it found packed into a tree.

Letters: B batch, N nodes, D depth, W nodes of one level, R guesses of each, P paths or the pool of
guesses, V draft vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft
from specjax.trees.base import Guesser
from specjax.trees.structure import at, take_rows


class Level(NamedTuple):
  """What a search saw below the W nodes of one level.

  Attributes:
    tokens: i32[B, W * R], the guesses, those of one node side by side and best first.
    score: f32[B, W * R], log-probability of the path down to each.
    kept: i32[B, W'], the best of them, best first: the nodes of the next level.
  """

  tokens: Array
  score: Array
  kept: Array


def search(width: int, depth: int, root: Array, guesser: Guesser) -> list[Level]:
  """The D levels of a beam search; ties go to the better path, then to the lower token.

  Args:
    width: nodes kept per level and guesses of each, fewer where there are no more.
    depth: D.
    root, guesser: see `trees.base.Tree.fill`.
  """
  B = root.shape[0]
  tokens, score = root, jnp.zeros((B, 1))
  above = jnp.ones((B, 1, 1), bool)  # which expanded nodes a node is or lies below
  levels = []
  for level in range(depth):
    logits, guesser = guesser.ask(level, tokens, above)
    best, guesses = guesser.best(logits, tokens.shape[1], width)
    reach, guessed = (score[:, :, None] + best).reshape(B, -1), guesses.reshape(B, -1)
    score, kept = jax.lax.top_k(reach, min(width, reach.shape[1]))
    levels.append(Level(guessed, reach, kept))
    tokens = at(guessed, kept)
    guesser, above = guesser.below(kept // best.shape[2], above)
  return levels


def likeliest(
  nodes: int, root: Array, tokens: Array, score: Array, parent: Array, depth: np.ndarray
) -> tuple[Draft, Array]:
  """The tree of the best of a pool of P guesses, level after level, and their scores f32[B, N - 1].

  Args:
    nodes: N, the root included (static); P is N - 1 or more.
    root: i32[B, 1].
    tokens: i32[B, P].
    score: f32[B, P], not above that of the guess it hangs below.
    parent: i32[B, P], number in the pool; -1 for the root.
    depth: i[P], static.
  """
  B = root.shape[0]
  # The best scores, ties to the earlier: parents come before their children and score no less, so
  # whoever is chosen has its parent chosen too. In order of the pool, parents come first.
  chosen = jnp.sort(jax.lax.top_k(score, nodes - 1)[1], 1)
  parent = at(parent, chosen)
  place = jnp.argmax(parent[:, :, None] == chosen[:, None, :], 2).astype(jnp.int32) + 1
  depths = jnp.broadcast_to(jnp.asarray(depth, jnp.int32), score.shape)
  root_node = jnp.zeros((B, 1), jnp.int32)
  draft = Draft(
    jnp.concatenate([root, at(tokens, chosen)], 1),
    jnp.concatenate([root_node, jnp.where(parent < 0, 0, place)], 1),
    jnp.concatenate([root_node, at(depths, chosen)], 1),
    jnp.ones((B, nodes), bool),
  )
  return draft, at(score, chosen)


def beam_paths(width: int, depth: int, root: Array, guesser: Guesser) -> Array:
  """i32[B, P, D]: the likeliest paths that a beam search finds, best first, all different.

  P is `width`, or V ** D where that is less. Arguments: see `search`.
  """
  paths = jnp.zeros((root.shape[0], 1, 0), jnp.int32)
  for tokens, _, kept in search(width, depth, root, guesser):
    parent = kept // (tokens.shape[1] // paths.shape[1])
    paths = jnp.concatenate([take_rows(paths, parent), at(tokens, kept)[:, :, None]], 2)
  return paths


def from_paths(paths: Array, root: Array, nodes: int) -> Draft:
  """The tree of paths below the root in which equal prefixes are one node.

  Nodes are numbered path after path, from the top down. Those that do not fit fall away, and with
  them what hangs below, which comes later.

  Args:
    paths: i32[B, P, D], in order of preference.
    root: i32[B, 1].
    nodes: N, the root included (static); nodes that the paths leave over are not valid.
  """
  B, P, D = paths.shape
  equal = paths[:, :, None] == paths[:, None]  # [B, P, P, D]
  shared = jnp.cumprod(equal, 3, dtype=jnp.int32)
  owner = jnp.argmax(shared, 2).astype(jnp.int32)  # [B, P, D]: first path with this prefix
  new = owner == jnp.arange(P, dtype=jnp.int32)[None, :, None]
  count = jnp.cumsum(new.reshape(B, P * D), 1, dtype=jnp.int32)
  first = owner * D + jnp.arange(D, dtype=jnp.int32)[None, None]
  node = at(count, first.reshape(B, P * D)).reshape(B, P, D)
  parent = jnp.concatenate([jnp.zeros((B, P, 1), jnp.int32), node[:, :, :-1]], 2)
  # Node n is where the count reaches n; what is left over repeats node 1, but is not valid.
  number = jnp.arange(1, nodes, dtype=jnp.int32)
  entry = jnp.argmax(count[:, None] == number[None, :, None], 2).astype(jnp.int32)
  top = jnp.zeros((B, 1), jnp.int32)
  return Draft(
    jnp.concatenate([root, at(paths.reshape(B, P * D), entry)], 1),
    jnp.concatenate([top, at(parent.reshape(B, P * D), entry)], 1),
    jnp.concatenate([top, entry % D + 1], 1),
    jnp.concatenate([jnp.ones((B, 1), bool), number[None] <= count[:, -1:]], 1),
  )
