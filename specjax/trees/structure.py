"""A draft as arrays: rows, ancestors, paths, and the walk of the target from the root.

Letters: B batch, N nodes (node 0 is the root), D maximum depth, A = D + 1. Every function is
vectorised over nodes and unrolled over depth.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft, Verdict


def gather(values: Array, index: Array) -> Array:
  """values[b, index[b, i]]: values [B, N, ...], index i32[B, M] -> [B, M, ...]."""
  index = index.reshape(*index.shape, *[1] * (values.ndim - 2))
  return jnp.take_along_axis(values, index, axis=1)


def take_rows(tree: Any, index: Array) -> Any:
  """`at` for every array [B, N, ...] of a pytree; index i32[B, M]."""
  return jax.tree.map(lambda x: gather(x, index), tree)


def rows_where(rows: Array, new: Any, old: Any) -> Any:
  """The pytree `new` in `rows` bool[B], `old` in the others; arrays [B, ...]."""
  return jax.tree.map(lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, old)


def chain(tokens: Array, valid: Array | None = None, log_probs: Array | None = None) -> Draft:
  """A draft of width 1.

  Args:
    tokens: i32[B, N], the root first.
    valid: bool[B, N], False past the chain's end; by default all nodes are valid.
    log_probs: f32[B, N, V], see `Draft`.
  """
  depth = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
  valid = jnp.ones(tokens.shape, bool) if valid is None else valid
  return Draft(tokens, jnp.maximum(depth - 1, 0), depth, valid, log_probs)


def below(root: Array, tokens: Array, parent: Array, depth: Array, valid: Array) -> Draft:
  """A draft of the root i32[B, 1] and the nodes below it; arrays [B, N - 1] as in `Draft`."""
  top = jnp.zeros_like(root)
  columns = ((root, tokens), (top, parent), (top, depth), (top == 0, valid))
  return Draft(*(jnp.concatenate(pair, 1) for pair in columns))


def side_by_side(drafts: Sequence[Draft]) -> Draft:
  """One draft of all nodes below one root, source after source, without their distributions."""
  columns, first = [], 0
  for tokens, parent, depth, valid, *_ in drafts:
    parent = jnp.where(parent > 0, parent + first, 0)
    columns.append([x[:, 1:] for x in (tokens, parent, depth, valid)])
    first += tokens.shape[1] - 1
  parts = (jnp.concatenate(x, 1) for x in zip(*columns, strict=True))
  return below(drafts[0].tokens[:, :1], *parts)


def ancestors(parent: Array, depth: int) -> Array:
  """bool[B, N, N]: entry i, j says that j is i or above it. parent i32[B, N]; depth is D."""
  N = parent.shape[1]
  node = jnp.broadcast_to(jnp.arange(N, dtype=parent.dtype), parent.shape)
  closure = node[:, :, None] == jnp.arange(N)[None, None]
  for _ in range(depth):
    node = gather(parent, node)
    closure = closure | (node[:, :, None] == jnp.arange(N)[None, None])
  return closure


def upwards(parent: Array, depth: int, node: Array | None = None) -> Array:
  """i32[B, M, A]: each `node` i32[B, M], its parent, the parent's parent, ..; the root repeats.

  By default `node` is every node in its order.
  """
  if node is None:
    node = jnp.broadcast_to(jnp.arange(parent.shape[1], dtype=parent.dtype), parent.shape)
  nodes = [node]
  for _ in range(depth):
    nodes.append(gather(parent, nodes[-1]))
  return jnp.stack(nodes, -1)


def path_to(node: Array, parent: Array, count: Array, depth: int) -> Array:
  """i32[B, A]: the nodes from the root to `node` i32[B] at depth `count`, then `node` again."""
  back = jnp.maximum(count[:, None] - jnp.arange(depth + 1, dtype=count.dtype)[None], 0)
  return gather(upwards(parent, depth, node[:, None])[:, 0], back)


def connected(hit: Array, parent: Array, depth: int) -> Array:
  """bool[B, N]: the nodes that are hit together with all above them; the root always is."""
  ok = hit.at[:, 0].set(True)
  for _ in range(depth):
    ok = ok & gather(ok, parent)
  return ok


def same_prefix(draft: Draft, depth: int) -> Array:
  """bool[B, N, N]: valid nodes that stand for the same text, as siblings of equal tokens do."""
  live = draft.valid & connected(draft.valid, draft.parent, depth)
  equal = live[:, :, None] & live[:, None]
  for x in (draft.depth, draft.tokens):
    equal = equal & (x[:, :, None] == x[:, None])
  same = equal
  for _ in range(depth):  # so must those above
    over = gather(gather(same, draft.parent).swapaxes(1, 2), draft.parent)
    same = equal & over
  return same


def merge(draft: Draft, depth: int) -> Draft:
  """Of equal tokens below equal parents only the first stays valid, with the children of all.

  This is for chosen tokens only, since it looks at tokens to drop them. `depth` is D.
  """
  above = upwards(draft.parent, depth)
  B, N, A = above.shape
  way = gather(draft.tokens, above.reshape(B, N * A)).reshape(B, N, A)
  reached = connected(draft.valid, draft.parent, depth)
  same = (way[:, :, None] == way[:, None]).all(-1) & reached[:, :, None] & reached[:, None]
  same = same & (draft.depth[:, :, None] == draft.depth[:, None])
  first = jnp.argmax(same, 2).astype(jnp.int32)
  node = jnp.arange(N, dtype=jnp.int32)[None]
  return draft._replace(parent=gather(first, draft.parent), valid=reached & (first == node))


def find_chain(draft: Draft, tokens: Array) -> tuple[Array, Array]:
  """Where a draft has the chain tokens i32[B, D] below its root, whoever drafted it.

  Returns:
    (i32[B, A] the node at each depth, bool[B, A] whether it is there and valid), the root first. A
    negative token is nowhere.
  """
  D = tokens.shape[1]
  wanted = jnp.pad(tokens, ((0, 0), (1, 1)), constant_values=-1)  # none for the root or below D
  hit = draft.valid & (draft.tokens == gather(wanted, jnp.minimum(draft.depth, D + 1)))
  ok = connected(hit, draft.parent, D)
  there = ok[:, None] & (draft.depth[:, None] == jnp.arange(D + 1, dtype=jnp.int32)[None, :, None])
  return jnp.argmax(there, 2).astype(jnp.int32), there.any(2)


def follow(draft: Draft, ok: Array, score: Array, after: Array, depth: int) -> Verdict:
  """Accepts the path to the deepest node of `ok`; among equals the best score, then the first.

  Args:
    ok: bool[B, N]; where it is True for a node, it is for its parent.
    score: f32[B, N].
    after: i32[B, N], the target's token after each node.
    depth: D.
  """
  reach = jnp.where(ok, draft.depth, -1)
  count = reach.max(1)
  deepest = reach == count[:, None]
  leaf = jnp.argmax(jnp.where(deepest, score, -jnp.inf), 1).astype(jnp.int32)
  return ending_at(draft, leaf, count, gather(after, leaf[:, None])[:, 0], depth)


def ending_at(draft: Draft, leaf: Array, count: Array, extra: Array, depth: int) -> Verdict:
  """Accepts the path to `leaf` i32[B] at depth `count` i32[B]; the token `extra` i32[B] follows."""
  path = path_to(leaf, draft.parent, count, depth)
  following = jnp.concatenate([path[:, 1:], path[:, -1:]], 1)
  accepted = jnp.arange(depth + 1, dtype=count.dtype)[None] < count[:, None]
  return Verdict(path, count, jnp.where(accepted, gather(draft.tokens, following), extra[:, None]))


def match(draft: Draft, after: Array, depth: int) -> Verdict:
  """Follows `after` i32[B, N], the target's token after each node, as far as it was drafted."""
  hit = draft.valid & (draft.tokens == gather(after, draft.parent))
  ok = connected(hit, draft.parent, depth)
  return follow(draft, ok, jnp.zeros(ok.shape), after, depth)
