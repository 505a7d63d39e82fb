"""Tree arrays against walks in plain Python, on random trees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Draft
from specjax.trees.structure import (
  ancestors,
  chain,
  connected,
  find_chain,
  follow,
  match,
  path_to,
  rows_where,
  same_prefix,
)

B, N, D, V = 50, 9, 5, 3


def random_trees(seed: int):
  """parent, depth i32[B, N], no deeper than D."""
  rng = np.random.default_rng(seed)
  parent, depth = np.zeros((B, N), np.int32), np.zeros((B, N), np.int32)
  for b in range(B):
    for i in range(1, N):
      shallow = np.flatnonzero(depth[b, :i] < D)
      parent[b, i] = rng.choice(shallow)
      depth[b, i] = depth[b, parent[b, i]] + 1
  return parent, depth


def upward(parent, node: int) -> list[int]:
  """The nodes from `node` to the root."""
  nodes = [node]
  while nodes[-1]:
    nodes.append(int(parent[nodes[-1]]))
  return nodes


PARENT, DEPTH = random_trees(0)


def test_ancestors():
  got = jax.jit(ancestors, static_argnums=1)(PARENT, D)
  want = np.zeros((B, N, N), bool)
  for b in range(B):
    for i in range(N):
      want[b, i, upward(PARENT[b], i)] = True
  np.testing.assert_array_equal(got, want)


def test_alike_are_nodes_of_one_text():
  rng = np.random.default_rng(2)
  tokens = rng.integers(2, size=(B, N)).astype(np.int32)
  valid = rng.random((B, N)) < 0.9
  valid[:, 0] = True
  got = jax.jit(same_prefix, static_argnums=1)(Draft(tokens, PARENT, DEPTH, valid), D)
  for b in range(B):
    ways = [upward(PARENT[b], i) for i in range(N)]
    texts = [tuple(tokens[b, w]) if valid[b, w].all() else None for w in ways]
    want = [[x is not None and x == y for y in texts] for x in texts]
    np.testing.assert_array_equal(got[b], want)
  assert got.sum() > valid.sum()


def test_path_to():
  node = np.random.default_rng(1).integers(N, size=B).astype(np.int32)
  count = DEPTH[np.arange(B), node]
  got = jax.jit(path_to, static_argnums=3)(node, PARENT, count, D)
  for b in range(B):
    path = upward(PARENT[b], node[b])[::-1]
    assert got[b].tolist() == path + [node[b]] * (D + 1 - len(path))


@pytest.mark.slow
def test_connected():
  hit = np.random.default_rng(2).random((B, N)) < 0.7
  got = jax.jit(connected, static_argnums=2)(hit, PARENT, D)
  for b in range(B):
    want = [all(hit[b, j] for j in upward(PARENT[b], i) if j) for i in range(N)]
    assert got[b].tolist() == want


def test_follow():
  rng = np.random.default_rng(3)
  tokens = rng.integers(V, size=(B, N)).astype(np.int32)
  after = rng.integers(V, size=(B, N)).astype(np.int32)
  score = rng.integers(3, size=(B, N)).astype(np.float32)  # with ties
  ok = np.array(connected(jnp.asarray(rng.random((B, N)) < 0.7), jnp.asarray(PARENT), D))
  draft = Draft(tokens, PARENT, DEPTH, np.ones((B, N), bool))
  verdict = jax.jit(follow, static_argnums=4)(draft, ok, score, after, D)
  for b in range(B):
    best = min(np.flatnonzero(ok[b]), key=lambda i: (-DEPTH[b, i], -score[b, i], i))
    path = upward(PARENT[b], int(best))[::-1]
    count = len(path) - 1
    assert verdict.count[b] == count
    assert verdict.path[b].tolist() == path + [int(best)] * (D - count)
    want = [*tokens[b, path[1:]].tolist(), int(after[b, best])]
    assert verdict.tokens[b, : count + 1].tolist() == want


@pytest.mark.parametrize("distinct", [True, False], ids=["distinct siblings", "repeated siblings"])
def test_match_walks_as_far_as_the_target_agrees(distinct):
  rng = np.random.default_rng(4)
  tokens = rng.integers(V, size=(B, N)).astype(np.int32)
  if distinct:
    for b in range(B):
      for i in range(N):
        siblings = np.flatnonzero((PARENT[b] == i) & (np.arange(N) > 0))
        tokens[b, siblings] = rng.permutation(N)[: len(siblings)]
  valid = rng.random((B, N)) < 0.9
  valid[:, 0] = True
  after = rng.integers(V, size=(B, N)).astype(np.int32)
  verdict = jax.jit(functools.partial(match, depth=D))(Draft(tokens, PARENT, DEPTH, valid), after)
  for b in range(B):

    def reach(node: int, b=b) -> list[int]:
      below = [
        reach(i) for i in range(1, N)
        if PARENT[b, i] == node and valid[b, i] and tokens[b, i] == after[b, node]
      ]  # fmt: skip
      return [node, *max(below, key=len, default=[])]

    path = reach(0)
    assert verdict.count[b] == len(path) - 1
    if distinct:
      assert verdict.path[b, : len(path)].tolist() == path
      assert verdict.tokens[b, : len(path)].tolist() == after[b, path].tolist()


def test_a_chain_is_a_draft_of_width_one():
  tokens = jnp.array([[5, 6, 7], [8, 9, 1]])
  draft = chain(tokens)
  assert draft.parent.tolist() == [[0, 0, 1]] * 2 and draft.depth.tolist() == [[0, 1, 2]] * 2
  assert draft.valid.all() and draft.log_probs is None and draft.tokens is tokens


def test_rows_of_a_pytree_are_chosen_one_by_one():
  new, old = ({"a": x * jnp.ones((2, 3)), "b": x * jnp.ones(2)} for x in (1, 0))
  got = rows_where(jnp.array([True, False]), new, old)
  assert got["a"].tolist() == [[1] * 3, [0] * 3] and got["b"].tolist() == [1, 0]


def test_spelled_finds_a_chain_of_tokens():
  rng, (parent, depth) = np.random.default_rng(4), random_trees(4)
  tokens, valid = rng.integers(V, size=(B, N)).astype(np.int32), rng.random((B, N)) < 0.8
  valid[:, 0] = True
  wanted = rng.integers(-1, V, size=(B, D - 1)).astype(np.int32)
  draft = Draft(*map(jnp.asarray, (tokens, parent, depth, valid)))
  node, there = map(np.asarray, jax.jit(find_chain)(draft, jnp.asarray(wanted)))
  for b in range(B):
    ways = {}
    for i in range(N):
      way = upward(parent[b], i)[::-1]
      if all(valid[b, way]):
        ways.setdefault(tuple(tokens[b, way[1:]].tolist()), i)
    for d in range(D):
      found = ways.get(tuple(wanted[b, :d].tolist()))
      assert there[b, d] == (found is not None)
      assert found is None or node[b, d] == found
  assert 10 < there[:, 1:].sum() < there[:, 1:].size
