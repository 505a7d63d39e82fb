"""Token Recycling remembers what the target found likely after each token, and guesses from that.

Luo et al. 2024 (arXiv 2408.08696). A pass of the target says for every node of a draft, refused
ones included, which tokens are likely to follow. Each row of the batch keeps the best of them for
the token of the node, and a draft is a static tree of rank paths that is looked up in this table.

Letters: B batch, N nodes, D depth, V vocabulary, R ranks that the tree has, T prompt length, E
width, C tokens of a prompt that are read at once.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Target, Verdict
from specjax.sampling import NoiseSource, Settings, likeliest
from specjax.trees.static import Choices, Static, levels, rows_of
from specjax.trees.structure import gather

CHUNK = 64  # C: the logits of a whole prompt never exist at once

# The published tree of 80 nodes below the root: how many children each of its inner nodes has. A
# path such as "010" is the best guess, below it the second best, below it the best.
CHILDREN = {
  "": 8, "0": 8, "1": 4, "2": 3, "3": 2, "4": 1, "5": 1, "6": 1, "7": 1,
  "00": 8, "01": 3, "02": 2, "03": 1, "04": 1, "05": 1, "06": 1, "07": 1,
  "10": 2, "11": 1, "20": 1, "30": 1, "40": 1, "50": 1,
  "000": 5, "001": 2, "002": 1, "003": 1, "004": 1, "010": 1, "020": 1, "100": 1, "200": 1,
  "300": 1, "0000": 3, "0001": 1, "0002": 1, "0010": 1, "0100": 1, "1000": 1,
  "00000": 2, "00010": 1,
}  # fmt: skip

# How often each rank of each depth is right, given that its parent is. smollm2-135m answered 32
# questions of Spec-Bench greedily with 64 tokens each, from seeded memories; in every one of 1020
# rounds its next tokens were looked up. Rates are rounded and never rise with the rank.
HIT_RATES = (
  (0.29, 0.08, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01),
  (0.37, 0.08, 0.04, 0.04, 0.02, 0.02, 0.01, 0.01),
  (0.40, 0.12, 0.04, 0.03, 0.03, 0.02, 0.02, 0.01),
  (0.45, 0.10, 0.04, 0.04, 0.02, 0.02, 0.02, 0.02),
  (0.51, 0.06, 0.05, 0.05, 0.02, 0.02, 0.01, 0.01),
  (0.57, 0.12, 0.06, 0.02, 0.02, 0.02, 0.02, 0.01),
)


def published() -> list[list[int]]:
  """The rank paths of the published tree, the most valuable first, each behind its parent."""
  paths = [[*map(int, path), rank] for path, n in CHILDREN.items() for rank in range(n)]
  return sorted(paths, key=lambda path: (-_worth(path), len(path), path))


def _worth(path: list[int]) -> float:
  """How often the target takes this path, by the hit rates."""
  return float(np.prod([HIT_RATES[depth][rank] for depth, rank in enumerate(path)]))


def remember(memory: Array, tokens: Array, logits: Array, order: Array, keep: Array) -> Array:
  """The memory i32[B, V, R] with the best tokens after each of N nodes in the rows of their tokens.

  Of nodes with equal tokens the last in `order` counts, so the result is the same on every device.

  Args:
    tokens: i32[B, N]. logits: f32[B, N, V].
    order: i32[B, N], a different number for each node of a row.
    keep: bool[B, N], which nodes are read; the others change nothing.
  """
  same = tokens[:, :, None] == tokens[:, None]
  later = order[:, :, None] < order[:, None]
  last = keep & ~(same & later & keep[:, None]).any(2)
  B, V, R = memory.shape
  column = jnp.where(last, tokens, V)  # behind the end: dropped
  return memory.at[jnp.arange(B)[:, None], column].set(likeliest(logits, R), mode="drop")


def look_up(memory: Array, root: Array, tree: Static) -> Draft:
  """A draft below `root` i32[B, 1]; what hangs below a token that was never seen is not valid."""
  shape, (B, _, R) = tree.shape, memory.shape
  row, tokens = jnp.arange(B)[:, None], root  # a token of -1 is unknown
  for level in levels(shape):
    above = tokens[:, level.inner]
    following = memory[row, jnp.maximum(above, 0)]
    following = jnp.where(above[..., None] >= 0, following, -1).reshape(B, -1)
    place = np.searchsorted(level.inner, shape.parent[level.children]) * R
    tokens = jnp.concatenate([tokens, following[:, place + shape.rank[level.children]]], 1)
  parent, depth = rows_of(shape.parent, B), rows_of(shape.depth, B)
  return Draft(jnp.maximum(tokens, 0), parent, depth, tokens >= 0)


def committed(verdict: Verdict, rows: Array, nodes: int) -> Array:
  """bool[B, N], the first `rows` i32[B] nodes of the accepted path."""
  step = jnp.arange(verdict.path.shape[1], dtype=jnp.int32)[None]
  on_path = verdict.path[..., None] == jnp.arange(nodes, dtype=jnp.int32)[None, None]
  return (on_path & (step < rows[:, None])[..., None]).any(1)


def part_of_published(nodes: int) -> Static:
  """The most valuable part of the published tree, of N nodes; ValueError where it has fewer."""
  paths: Choices = published()
  if not 2 <= nodes <= 1 + len(paths):
    raise ValueError(
      f"`nodes` must be between 2 and {1 + len(paths)} for the published tree of token_recycling, "
      f"got {nodes}; a larger tree is given as a tree."
    )
  return Static(paths[: nodes - 1])


def nothing(size: int, tree: Static) -> Array:
  """i32[V, R], a memory of nothing."""
  return jnp.full((size, 1 + int(tree.shape.rank.max())), -1, jnp.int32)


@functools.cache
def token_recycling(
  target: Target,
  nodes: int = 8,
  seeded: bool = True,
  kept: bool = False,
  tree: Static | None = None,
) -> Drafter:
  """A tree of the tokens that the target last found likeliest after each token.

  This is Token Recycling (Luo et al. 2024, arXiv 2408.08696). The memory belongs to one text and
  takes V * R * 4 bytes per row, 1.6 MB for 49152 tokens and 8 ranks. It holds the logits of the
  target itself, without processors and sampling settings, since it only proposes. In a conversation
  the logits of later turns exist anyway, so they are remembered, seeded or not.

  It was measured with 8 nodes.

  Measured: 1.54 tokens per pass (without_training)

  Args:
    nodes: N; the most valuable part of the published tree, which has 81 nodes, root included.
    seeded: whether the memory begins with the prompt. That runs the vocabulary projection once for
      every token of the prompt, CHUNK tokens at a time.
    kept: whether it begins with what earlier requests left, as published; then the drafter's
      weights are that memory i32[V, R], at first `nothing`.
    tree: rank paths of one's own in place of `nodes`.

  Raises:
    ValueError: more nodes than the published tree has, or a rank that the vocabulary lacks.
  """
  filled = part_of_published(nodes) if tree is None else tree
  ranks, V = 1 + int(filled.shape.rank.max()), target.vocab_size
  if ranks > V:
    raise ValueError(f"tree has rank {ranks - 1}: the target has {V} tokens.")

  def init(
    params: Params, target_params: Params, /, context: Context, features: Features, capacity: int
  ) -> Any:
    B, T, _ = features.hidden.shape
    start = params if kept else nothing(V, filled)
    memory = jnp.broadcast_to(start[None], (B, V, ranks))
    if not seeded:
      return memory
    size = min(CHUNK, T)

    def read_chunk(i: Array, memory: Array) -> Array:
      first = jnp.minimum(i * size, T - size)  # the last one may begin within the one before it
      position = jnp.broadcast_to(first + jnp.arange(size, dtype=jnp.int32), (B, size))
      logits = target.head(target_params, gather(features.hidden, position))
      keep = position < context.length[:, None]
      return remember(memory, gather(context.tokens, position), logits, position, keep)

    chunks = (jnp.max(context.length) + size - 1) // size
    return jax.lax.fori_loop(0, chunks, read_chunk, memory)

  def propose(
    params: Params,
    target_params: Params,
    memory: Any,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    return look_up(memory, context.root, filled), memory

  def update(
    params: Params,
    target_params: Params,
    memory: Any,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    N = draft.tokens.shape[1]
    number = jnp.arange(N, dtype=jnp.int32)[None]
    order = number + N * committed(verdict, rows, N).astype(jnp.int32)
    keep = draft.valid & (rows > 0)[:, None]
    return remember(memory, draft.tokens, evaluation.logits, order, keep)

  def read(
    params: Params,
    target_params: Params,
    memory: Any,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    N = draft.tokens.shape[1]
    order = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), draft.tokens.shape)
    keep = committed(verdict, rows, N)
    return remember(memory, draft.tokens, evaluation.logits, order, keep)

  def keep(params: Params, memory: Any, context: Context) -> Params:
    # Of the rows that know and changed what follows a token, the first. A row that knows nothing
    # may have begun before another one learnt it.
    changed = ((memory != params[None]) & (memory >= 0)).any(2)
    first = jnp.argmax(changed, 0)[None, :, None]
    return jnp.where(changed.any(0)[:, None], jnp.take_along_axis(memory, first, 0)[0], params)

  return Drafter(
    "token_recycling",
    "deterministic",
    filled.nodes,
    filled.depth,
    init,
    propose,
    update,
    read=read,
    varies=True,
    keep=keep if kept else None,
  )
