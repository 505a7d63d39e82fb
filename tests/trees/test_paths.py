"""Packed paths against a trie in plain Python, and beam search against one over lists."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.trees import Beam, Dynamic, Guesser
from specjax.trees.paths import beam_paths, from_paths

B = 6


def trie(paths, nodes: int):
  """(path of every node in order of appearance): the first `nodes` - 1 prefixes of the paths."""
  seen = []
  for path in paths:
    for j in range(1, len(path) + 1):
      if path[:j] not in seen:
        seen.append(path[:j])
  return seen[: nodes - 1]


def paths_in(draft, b: int):
  """The path of every valid node but the root, in order, from its own row of arrays."""
  tokens, parent, depth, valid = (np.asarray(x)[b] for x in draft[:4])
  assert valid[0] and (parent[1:] < np.arange(1, len(parent))).all() and parent[0] == depth[0] == 0
  found = [()]
  for i in range(1, len(tokens)):
    found.append((*found[parent[i]], int(tokens[i])))
    assert depth[i] == depth[parent[i]] + 1
    assert valid[parent[i]] or not valid[i]
  return [path for path, ok in zip(found, valid, strict=True) if ok][1:]


@pytest.mark.parametrize(
  ("P", "D", "V", "nodes"),
  [(1, 3, 4, 4), (5, 3, 2, 16), (5, 3, 3, 9), (7, 4, 2, 6), (4, 1, 3, 5), (6, 3, 9, 40)],
)
def test_equal_prefixes_are_one_node(P, D, V, nodes):
  rng = np.random.default_rng(P)
  paths = rng.integers(0, V, (B, P, D)).astype(np.int32)
  root = rng.integers(0, V, (B, 1)).astype(np.int32)
  draft = jax.jit(from_paths, static_argnums=2)(paths, root, nodes)
  assert all(x.shape == (B, nodes) for x in draft[:4])
  np.testing.assert_array_equal(draft.tokens[:, :1], root)
  for b in range(B):
    assert paths_in(draft, b) == trie([tuple(p) for p in paths[b].tolist()], nodes)


V, D, K = 5, 3, 7  # tokens, depth, states of the made-up head below
ROOT = np.arange(B, dtype=np.int32)[:, None] % V


@functools.cache
def distributions():
  """f32[D, K, V]: logits of the made-up head by level and the state a path leads to."""
  return np.random.default_rng(0).normal(size=(D, K, V)).astype(np.float32) * 2


def state_of(path) -> int:
  """What the head knows of a path, the root's token first."""
  return sum(3**j * int(token) for j, token in enumerate(path)) % K


def head(level, tokens, carry, memory, mask):
  """Knows the path twice, which must agree: in its carry, and in the rows it sees of a memory."""
  rows = jnp.concatenate([memory, 3**level * tokens], 1)
  seen = jnp.where(mask, rows[:, None], 0).sum(2)
  carry = carry + 3**level * tokens
  logits = jnp.asarray(distributions()[level])[carry % K]
  return jnp.where((seen == carry)[:, :, None], logits, jnp.nan), carry, rows


def beams(root: int, width: int, depth: int, names=range(V)):
  """Beam search over lists: paths, best first. names: what the head's guesses are called."""
  kept = [(0.0, ())]
  for level in range(depth):
    longer = []
    for score, path in kept:
      logits = distributions()[level][state_of((root, *path))].astype(np.float64)
      total = math.log(np.exp(logits).sum())
      longer += [(score + x - total, (*path, names[v])) for v, x in enumerate(logits)]
    kept = sorted(longer, key=lambda x: -x[0])[:width]
  return [path for _, path in kept]


NOTHING = jnp.zeros((B, 1), jnp.int32), jnp.zeros((B, 0), jnp.int32)  # carry, memory


@pytest.mark.parametrize(("width", "depth"), [(1, 3), (4, 1), (4, 3), (30, 3)])
def test_beam_search(width, depth):
  run = jax.jit(lambda root: beam_paths(width, depth, root, Guesser(head, *NOTHING)))
  paths = np.asarray(run(ROOT))
  for b in range(B):
    assert [tuple(p) for p in paths[b].tolist()] == beams(int(ROOT[b, 0]), width, depth)


@pytest.mark.parametrize("tree", [Beam(13, 3, 4), Beam(6, 3, 4), Beam(61, 2, 30)])
@pytest.mark.parametrize("ids", [None, np.array([3, 4, 10, 11, 90], np.int32)])
def test_a_beam_grows_as_a_tree(tree, ids):
  draft = jax.jit(lambda root: tree.fill(root, Guesser(head, *NOTHING, ids)))(ROOT)
  assert tree.nodes == draft.tokens.shape[1]
  names = range(V) if ids is None else ids.tolist()
  for b in range(B):
    want = trie(beams(int(ROOT[b, 0]), tree.width, tree.depth, names), tree.nodes)
    assert paths_in(draft, b) == want


@pytest.mark.parametrize("beam", [1, 3])
def test_a_dynamic_tree_holds_the_surest_nodes_that_were_seen(beam):
  """EAGLE-2's reranking over lists: children of the best `beam` paths of each level."""
  tree = Dynamic(1 + beam + (D - 1) * beam**2 // 2 + (beam == 1), D, beam)
  draft = jax.jit(lambda root: tree.fill(root, Guesser(head, *NOTHING)))(ROOT)
  for b in range(B):
    kept, pool = [(0.0, ())], []
    for level in range(D):
      seen = []
      for score, path in kept:
        logits = distributions()[level][state_of((int(ROOT[b, 0]), *path))].astype(np.float64)
        log_probs = logits - math.log(np.exp(logits).sum())
        seen += [(score + log_probs[v], (*path, int(v))) for v in np.argsort(-log_probs)[:beam]]
      pool += seen
      kept = sorted(seen, key=lambda x: -x[0])[:beam]
    want = sorted(pool, key=lambda x: -x[0])[: tree.nodes - 1]
    assert sorted(paths_in(draft, b)) == sorted(path for _, path in want)


@pytest.mark.parametrize(
  ("shape", "numbers", "words"),
  [
    (Beam, (5, 2, 0), "`tree` must have depth and width of at least 1, .*, got Beam"),
    (Beam, (1, 0, 3), "`tree` must have depth and width of at least 1, .*, got Beam"),
    (Beam, (3, 3, 4), "more nodes than depth but at most 1 . depth . width = 13, got Beam"),
    (Beam, (14, 3, 4), "more nodes than depth but at most 1 . depth . width = 13, got Beam"),
    (Dynamic, (22, 2, 3), r"at most 1 . beam . \(depth - 1\) . beam..2 = 13"),
  ],
)
def test_an_impossible_search_is_refused(shape, numbers, words):
  with pytest.raises(ValueError, match=words):
    shape(*numbers)
