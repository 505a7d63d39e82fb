"""Guesses form a graph, in which a guess after the same tokens is linked instead of repeated.

Letters: B batch, N nodes, D depth, W nodes of one level, R guesses of each, P = W R, E expanded
nodes, V draft vocabulary.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Proposal
from specjax.distributed import top_k
from specjax.trees.base import NEVER, Guesser, check_size
from specjax.trees.paths import likeliest
from specjax.trees.structure import gather, take_rows


@dataclasses.dataclass(frozen=True)
class Graph:
  """Walks through a graph whose repetitions are linked.

  Where a guess and the `repeat` tokens before it equal those of an expanded node off its path, the
  guess is not expanded: it is linked to that node and has its children. The W expansions of a level
  are spent on the likeliest other guesses. The target's distribution depends on the whole path, so
  a tree is verified, that of the likeliest walks through the graph.

  The children behind a link were guessed after another text. Guesses are chosen, so this can cost
  acceptance, but not exactness. Shapes are static, so every level takes a pass over W nodes; links
  leave room in it for others, or allow a smaller W.

  Graph-structured speculation (Gong et al. 2024, arXiv 2407.16207), unrolled to a tree.

  Measured: 4.84 tokens per pass (trees)

  Attributes:
    nodes: N of the tree, the root included; nodes are left unused where there are fewer walks.
    depth: D.
    beam: nodes expanded per level, and guesses of each.
    repeat: tokens before the guess that must be equal too.
    sibling: a guess less likely than this times its likeliest sibling is dropped (published values
      are 0.1 to 0.4).
    least: a guess less likely than this after its parent is not expanded (published: 0.3, 0.4).
  """

  nodes: int
  depth: int
  beam: int
  repeat: int = 1
  sibling: float = 0.0
  least: float = 0.0
  proposal: ClassVar[Proposal] = "deterministic"

  def __post_init__(self) -> None:
    if not (self.repeat >= 0 and self.sibling >= 0 and self.least >= 0):
      raise ValueError(f"`tree` must have repeat, sibling and least of at least 0, got {self}.")
    most = sum(self.beam**d for d in range(self.depth + 1))
    check_size(self, "beam", "1 + beam + .. + beam**depth", most)

  def fill(self, root: Array, guesser: Guesser) -> Draft:
    return unroll(self, expand(self, root, guesser), root)


class Links(NamedTuple):
  """The graph. Expanded node 0 is the root; the nodes of a level follow each other.

  Attributes:
    tokens: i32[B, E, R], the target's ids.
    log_probs: f32[B, E, R], of each guess after its node; -inf for none.
    to: i32[B, E, R], the expanded node that a guess is or is linked to; -1 where it ends.
  """

  tokens: Array
  log_probs: Array
  to: Array


def expand(tree: Graph, root: Array, guesser: Guesser) -> Links:
  """Builds the graph in D passes of the head; E = 1 + (D - 1) W at most."""
  B = root.shape[0]
  tokens, reach, above = root, jnp.zeros((B, 1)), jnp.ones((B, 1, 1), bool)
  tail = jnp.concatenate([jnp.full((B, 1, tree.repeat), -1, jnp.int32), root[..., None]], 2)
  seen = tail[:, :0]
  live = jnp.zeros((B, 0), bool)
  parts: list[Links] = []
  for level in range(tree.depth):
    logits, guesser = guesser.ask(level, tokens, above)
    log_probs, guesses = guesser.best(logits, tokens.shape[1], tree.beam)
    _, W, R = guesses.shape
    kept = jnp.exp(log_probs) >= tree.sibling * jnp.exp(log_probs[..., :1])
    log_probs = jnp.where(kept & (reach > NEVER)[..., None], log_probs, NEVER)
    total = (reach[..., None] + log_probs).reshape(B, W * R)

    seen, live = jnp.concatenate([seen, tail], 1), jnp.concatenate([live, reach > NEVER], 1)
    tails = jnp.broadcast_to(tail[:, :, None, 1:], (B, W, R, tree.repeat))
    tails = jnp.concatenate([tails, guesses[..., None]], 3).reshape(B, W * R, -1)
    earlier = (tails[:, :, None] == seen[:, None]).all(-1) & live[:, None]
    earlier = earlier & ~jnp.repeat(above, R, 1)
    # Of guesses of this level that could be linked to each other the likeliest is expanded.
    wanted = (total > NEVER) & ~earlier.any(-1)
    wanted = wanted & (jnp.exp(log_probs.reshape(B, W * R)) >= tree.least)
    same = (tails[:, :, None] == tails[:, None]).all(-1)
    order = jnp.arange(W * R)
    before = (total[:, None] > total[:, :, None]) | (
      (total[:, None] == total[:, :, None]) & (order[None, None] < order[None, :, None])
    )
    leads = wanted & ~(same & before & wanted[:, None]).any(-1)
    reach, chosen = top_k(jnp.where(leads, total, NEVER), min(tree.beam, W * R))
    expanded = (chosen[:, None] == order[None, :, None]) & (reach > NEVER)[:, None]
    fresh = (same[..., None] & expanded[:, None]).any(2)  # [B, P, W']
    options = jnp.concatenate([earlier, fresh], 2) & (total > NEVER)[..., None]
    if level == tree.depth - 1:
      options = jnp.zeros_like(options)
    to = jnp.where(options.any(-1), jnp.argmax(options, -1).astype(jnp.int32), -1)
    parts.append(Links(guesses, log_probs, to.reshape(B, W, R)))

    tokens = gather(guesses.reshape(B, W * R), chosen)
    guesser, above = guesser.below(chosen // R, above)
    tail = gather(tails, chosen)
  return jax.tree.map(lambda *x: jnp.concatenate(x, 1), *parts)


def unroll(tree: Graph, links: Links, root: Array) -> Draft:
  """The N - 1 likeliest walks of 1 to D steps from the root i32[B, 1], as a tree."""
  B, _, R = links.tokens.shape
  node, reach = jnp.zeros((B, 1), jnp.int32), jnp.zeros((B, 1))
  number = jnp.full((B, 1), -1, jnp.int32)  # place in the pool of the last step of each walk
  pool: list[tuple[Array, Array, Array]] = []
  seen = 0
  for _ in range(tree.depth):
    tokens, log_probs, to = take_rows(links, jnp.maximum(node, 0))
    log_probs = jnp.where(node[..., None] >= 0, log_probs, NEVER)
    P = node.shape[1] * R
    reach, chosen = top_k((reach[..., None] + log_probs).reshape(B, P), min(tree.nodes - 1, P))
    tokens, node = (gather(x.reshape(B, P), chosen) for x in (tokens, to))
    pool.append((tokens, reach, gather(number, chosen // R)))
    last = seen + jnp.arange(reach.shape[1], dtype=jnp.int32)
    number, seen = jnp.broadcast_to(last, reach.shape), seen + reach.shape[1]
  draft, reach = likeliest(tree.nodes, root, pool)
  return draft._replace(valid=draft.valid.at[:, 1:].set(reach > NEVER))
