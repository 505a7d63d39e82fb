"""Lookahead decoding collects n-grams that the target says of itself, and guesses with them.

Fu et al. 2024 (arXiv 2402.02057). A window of guesses runs ahead of the text: W columns, whose
N - 1 rows are what the target said there in the last passes. With the newest row a column is an
n-gram, and goes to a pool. A draft holds the window and the n-grams that begin with the root.

Letters: B batch, N tokens of an n-gram, W columns of the window, G guesses from the pool, S n-grams
that the pool holds, D depth, T prompt length.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specjax.base import Context, Draft, Drafter, Evaluation, Features, Params, Verdict
from specjax.drafters.jacobi.guesses import moved, repeated
from specjax.sampling import NoiseSource, Settings, most_likely
from specjax.trees.static import rows_of
from specjax.trees.structure import below, find_chain, gather, merge

SLOTS = 1024  # S
MOST_NODES = 1024


class Lookahead(NamedTuple):
  """What is kept between rounds.

  Attributes:
    window: i32[B, W, N - 1], by columns. Entry i, l is a guess of the token i + l places behind the
      root; 0, 0 is the root itself and is not read.
    pool: i32[B, S, N], n-grams, the newest last; -1 where there is none yet.
  """

  window: Array
  pool: Array


def insert(pool: Array, gram: Array, wanted: Array) -> Array:
  """The pool i32[B, S, N] with gram i32[B, N] as its newest, in the rows `wanted` bool[B].

  An equal one moves to the end; otherwise the oldest is dropped.
  """
  equal = (pool == gram[:, None]).all(-1)
  gone = jnp.argmax(equal, 1)  # 0, the oldest, where none is equal
  S = pool.shape[1]
  later = jnp.arange(S)[None] >= gone[:, None]
  shifted = jnp.concatenate([pool[:, 1:], gram[:, None]], 1)
  return jnp.where((later & wanted[:, None])[..., None], shifted, pool)


def newest(pool: Array, root: Array, count: int) -> tuple[Array, Array]:
  """(i32[B, G, N - 1], bool[B, G]): what follows `root` i32[B, 1] in its G newest n-grams."""
  S = pool.shape[1]
  age = jnp.where(pool[:, :, 0] == root, jnp.arange(S, dtype=jnp.int32)[None], -1)
  place = lax.top_k(age, count)[0]
  return gather(pool, jnp.maximum(place, 0))[:, :, 1:], place >= 0


class LookaheadShape(NamedTuple):
  """The nodes of a draft, static.

  Attributes:
    cell: i32[M], where the flat window [W (N - 1)] holds each of its M nodes but the root.
    way: i32[W, W + N - 3], of each column, the cells below the root on the way to its newest token:
      row 0 up to the column, then the column. -1 behind the end.
    parent, depth: i32[M + G (N - 1)], of the nodes below the root: row 0 of the window, its other
      rows, then the guesses one after the other.
  """

  cell: np.ndarray
  way: np.ndarray
  parent: np.ndarray
  depth: np.ndarray


def shape_of(level: int, window: int, guesses: int) -> LookaheadShape:
  """The nodes of N = `level`, W = `window` and G = `guesses`."""
  rows = level - 1
  cells = [(i, 0) for i in range(1, window)]
  cells += [(i, row) for row in range(1, rows) for i in range(window)]
  node = {cell: k for k, cell in enumerate([(0, 0), *cells])}
  parent = [node[(i, row - 1) if row else (i - 1, 0)] for i, row in cells]
  depth = [i + row for i, row in cells]
  for first in range(1 + len(cells), 1 + len(cells) + guesses * rows, rows):
    parent += [0, *range(first, first + rows - 1)]
    depth += range(1, level)
  way = np.full((window, max(window + level - 3, 0)), -1, np.int32)
  for i in range(window):
    own = [*((c, 0) for c in range(1, i + 1)), *((i, row) for row in range(1, rows))]
    way[i, : len(own)] = [c * rows + row for c, row in own]
  return LookaheadShape(
    np.array([i * rows + row for i, row in cells], np.int32),
    way,
    np.array(parent, np.int32),
    np.array(depth, np.int32),
  )


@functools.cache
def lookahead(level: int = 5, window: int = 7, guesses: int = 7, seeded: bool = True) -> Drafter:
  """Guesses with n-grams that the target itself generated while it looked ahead.

  This is lookahead decoding (Fu et al. 2024, arXiv 2402.02057). The window is a tree: row 0 is a
  chain, and the guess of a row hangs below that of the same column in the row before. So its nodes
  are nodes of the draft like any others, which the target's walk may take too, and one plain pass
  evaluates all (W + G) (N - 1) nodes. Equal ways are merged. The window moves by all tokens that
  were committed; new columns repeat the last one. It begins with the last tokens of the prompt. A
  column that says one token only, as behind the end of a text, goes on with the newest committed
  token. In a union the window's nodes are found wherever the joint draft has them; in a round that
  did not evaluate them, the window only moves.

  The published pool holds G n-grams for each of V tokens, 5.5 MB per row for 49152. This one holds
  the newest S = 1024 of all tokens, 4 S N bytes, 0.02 MB per row for N = 5, whatever V is. What
  follows a token is the same as long as no more than S are alive.

  Measured: 1.63 tokens per pass (without_training)

  Args:
    level: N, the tokens of an n-gram, with the one it is found by.
    window: W, columns.
    guesses: G, n-grams that are drafted, the newest first.
    seeded: whether the pool begins with the n-grams of the prompt.

  Raises:
    ValueError: a level below 2, an empty window, no guess or more than S, or more than 1024 nodes.
  """
  shown = f"level={level}, window={window}, guesses={guesses}"
  if level < 2 or window < 1 or not 1 <= guesses <= SLOTS:
    raise ValueError(
      f"{shown}: lookahead takes a level of 2 or more, a window of 1 or more and 1 "
      f"to {SLOTS} guesses."
    )
  nodes = (window + guesses) * (level - 1)
  if nodes > MOST_NODES:
    raise ValueError(
      f"{shown}: `(window + guesses) (level - 1)`, the nodes of lookahead, must be at most "
      f"{MOST_NODES}, got {nodes}."
    )
  shape = shape_of(level, window, guesses)
  depth = int(shape.depth.max())

  def init(
    params: Params, target_params: Params, /, context: Context, features: Features, capacity: int
  ) -> Any:
    B = len(context.length)
    ahead = repeated(context, max(window + level - 3, 1))
    column = np.arange(window)[:, None] + np.arange(level - 1)[None]
    first = ahead[:, np.maximum(column - 1, 0)]
    pool = jnp.full((B, SLOTS, level), -1, jnp.int32)
    if not seeded:
      return Lookahead(first, pool)

    def read(i: Array, pool: Array) -> Array:
      gram = lax.dynamic_slice_in_dim(context.tokens, i, level, 1)
      return insert(pool, gram, i + level <= context.length)

    last = jnp.minimum(context.length.max(), context.tokens.shape[1]) - level + 1
    return Lookahead(first, lax.fori_loop(0, last, read, pool))

  def propose(
    params: Params,
    target_params: Params,
    state: Lookahead,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]:
    B = len(context.length)
    follow, known = newest(state.pool, context.root, guesses)
    ahead = state.window.reshape(B, -1)[:, shape.cell]
    tokens = jnp.concatenate([ahead, jnp.maximum(follow, 0).reshape(B, -1)], 1)
    valid = jnp.concatenate([ahead >= 0, jnp.repeat(known, level - 1, 1)], 1)
    parent, place = (rows_of(x, B) for x in (shape.parent, shape.depth))
    return merge(below(context.root, tokens, parent, place, valid), depth), state

  def update(
    params: Params,
    target_params: Params,
    state: Lookahead,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any:
    B = len(rows)
    flat = state.window.reshape(B, -1)
    wanted = jnp.where(shape.way[None] >= 0, flat[:, np.maximum(shape.way, 0)], -1)
    nodes, there = jax.vmap(find_chain, (None, 1), 1)(draft, wanted)
    end = np.arange(window) + level - 2  # the depth of each column's newest guess
    node, ran = (x[:, np.arange(window), end] for x in (nodes, there))
    said = gather(most_likely(evaluation.logits), node)
    columns = state.window.at[:, 0, 0].set(draft.tokens[:, 0])
    grams = jnp.concatenate([columns, said[..., None]], 2)
    ran = ran.all(1) & (rows > 0)

    pool = lax.fori_loop(0, window, lambda i, pool: insert(pool, grams[:, i], ran), state.pool)
    root = gather(verdict.tokens, jnp.maximum(rows[:, None] - 1, 0))
    stuck = (grams == grams[..., :1]).all(-1)
    grams = grams.at[:, :, -1].set(jnp.where(stuck, root, said))
    ahead = moved(grams[..., 1:], rows - 1, window)
    return Lookahead(jnp.where(ran[:, None, None], ahead, moved(state.window, rows, window)), pool)

  return Drafter("lookahead", "deterministic", nodes, depth, init, propose, update)
