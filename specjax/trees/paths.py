"""Beam search over a head's guesses, and trees of the paths and nodes that a search found.

Letters: B batch, N nodes, D depth, W nodes of one level, R guesses of each, P paths or the pool of
guesses, V draft vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Draft
from specjax.distributed import top_k
from specjax.trees.base import Guesser
from specjax.trees.structure import below, gather


class Level(NamedTuple):
  """The guesses below the W nodes of one level.

  Attributes:
    tokens: i32[B, W * R], those of one node side by side and best first.
    score: f32[B, W * R], log-probability of the path down to each.
    kept: i32[B, W'], places of the best, best first: the nodes of the next level.
  """

  tokens: Array
  score: Array
  kept: Array


def search(width: int, depth: int, root: Array, guesser: Guesser) -> list[Level]:
  """The D levels of a beam search; ties go to the better path, then to the lower token.

  Args:
    width: nodes kept per level and guesses of each, at most.
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
    score, kept = top_k(reach, min(width, reach.shape[1]))
    levels.append(Level(guessed, reach, kept))
    tokens = gather(guessed, kept)
    guesser, above = guesser.below(kept // best.shape[2], above)
  return levels


def likeliest(
  nodes: int, root: Array, pool: Sequence[tuple[Array, Array, Array]]
) -> tuple[Draft, Array]:
  """The tree of the best guesses of a pool, level after level, and their scores f32[B, N - 1].

  Args:
    nodes: N, the root included (static).
    root: i32[B, 1].
    pool: N - 1 guesses or more: (tokens i32, scores f32, parents i32) [B, any] of each level. A
      parent is a place in the pool, -1 for the root, and scores no less than its children.
  """
  tokens, score, parent = (jnp.concatenate(x, 1) for x in zip(*pool, strict=True))
  depths = np.repeat(np.arange(1, len(pool) + 1), [level[0].shape[1] for level in pool])
  # Of equal scores the earlier are chosen: parents come before their children and score no less,
  # so the parent of a chosen guess is chosen too. Sorted places keep parents in front.
  chosen = jnp.sort(top_k(score, nodes - 1)[1], 1)
  parent = gather(parent, chosen)
  place = jnp.argmax(parent[:, :, None] == chosen[:, None, :], 2).astype(jnp.int32) + 1
  depth = gather(jnp.broadcast_to(jnp.asarray(depths, jnp.int32), score.shape), chosen)
  parent, valid = jnp.where(parent < 0, 0, place), jnp.ones(chosen.shape, bool)
  return below(root, gather(tokens, chosen), parent, depth, valid), gather(score, chosen)


def beam_paths(width: int, depth: int, root: Array, guesser: Guesser) -> Array:
  """i32[B, P, D]: the paths that `search` finds, best first, all different.

  P is `width`, or V ** D where that is less.
  """
  paths = jnp.zeros((root.shape[0], 1, 0), jnp.int32)
  for tokens, _, kept in search(width, depth, root, guesser):
    parent = kept // (tokens.shape[1] // paths.shape[1])
    paths = jnp.concatenate([gather(paths, parent), gather(tokens, kept)[:, :, None]], 2)
  return paths


def from_paths(paths: Array, root: Array, nodes: int) -> Draft:
  """The tree of paths i32[B, P, D] below the root i32[B, 1], in which equal prefixes are one node.

  Nodes are numbered path after path, from the top down. Only the first `nodes` (static, N) are
  kept, which drops whole ends of the last paths; nodes that the paths leave over are not valid.
  """
  B, P, D = paths.shape
  equal = paths[:, :, None] == paths[:, None]  # [B, P, P, D]
  shared = jnp.cumprod(equal, 3, dtype=jnp.int32)
  owner = jnp.argmax(shared, 2).astype(jnp.int32)  # [B, P, D]: first path with this prefix
  new = owner == jnp.arange(P, dtype=jnp.int32)[None, :, None]
  count = jnp.cumsum(new.reshape(B, P * D), 1, dtype=jnp.int32)
  first = owner * D + jnp.arange(D, dtype=jnp.int32)[None, None]
  node = gather(count, first.reshape(B, P * D)).reshape(B, P, D)
  parent = jnp.concatenate([jnp.zeros((B, P, 1), jnp.int32), node[:, :, :-1]], 2)
  # Node n is where the count reaches n; nodes left over repeat node 1, but are not valid.
  number = jnp.arange(1, nodes, dtype=jnp.int32)
  entry = jnp.argmax(count[:, None] == number[None, :, None], 2).astype(jnp.int32)
  tokens, parent = (gather(x.reshape(B, P * D), entry) for x in (paths, parent))
  return below(root, tokens, parent, entry % D + 1, number[None] <= count[:, -1:])
