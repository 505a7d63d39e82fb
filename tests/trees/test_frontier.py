"""DySpec's tree against its algorithm, one node after the other."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import Settings
from specjax.trees import DySpec, Guesser, Sampling
from specjax.trees.frontier import level_sizes

V = 5


class Ranked:
  """Noise whose draws are the likeliest tokens, so that a plain program knows them."""

  def children(self, stream, log_probs, count, distinct):
    return jax.lax.top_k(log_probs, count)[1].astype(jnp.int32)


def table(seed: int) -> np.ndarray:
  """Logits f32[V + 1, V] after each token; the last row is the root's."""
  return np.float32(1.5 * np.random.default_rng(seed).normal(size=(V + 1, V)))


def filled(tree: DySpec, logits: np.ndarray):
  """The paths of tokens of a row's valid nodes."""
  one = jnp.ones(1)
  settings = Settings(one, jnp.zeros(1, jnp.int32), one, jnp.zeros(1))

  def step(level, tokens, carry, memory, mask):
    return jnp.asarray(logits)[tokens], carry, memory

  sampling = Sampling(settings, Ranked(), V)
  draft = tree.fill(jnp.full((1, 1), V, jnp.int32), Guesser(step, sampling=sampling))
  tokens, parent, depth, valid = (np.asarray(x[0]) for x in draft[:4])
  assert len(tokens) == tree.nodes and (depth <= tree.depth).all()
  paths = {0: ()}
  for node in range(1, tree.nodes):
    if valid[node]:
      assert parent[node] < node and depth[node] == depth[parent[node]] + 1
      paths[node] = (*paths[parent[node]], int(tokens[node]))
  q = np.asarray(draft.log_probs[0])
  for node, path in paths.items():
    if any(len(p) > len(path) and p[: len(path)] == path for p in paths.values()):
      last = path[-1] if path else V
      np.testing.assert_allclose(q[node], jax.nn.log_softmax(logits[last]), rtol=1e-5)
  return list(paths.values())[1:]


def grown(tree: DySpec, logits: np.ndarray):
  """Best first (algorithm 1): the worthiest place for a child is filled, again and again."""
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  order = np.argsort(-p, axis=-1, kind="stable")
  places, paths = [(-1.0, (), 0, 1.0)], []
  while places and len(paths) < tree.nodes - 1:
    worth, above, rank, reached = heapq.heappop(places)
    last = above[-1] if above else V
    token = int(order[last, rank])
    path, chance = (*above, token), p[last, token]
    paths.append(path)
    if rank + 1 < tree.children:
      heapq.heappush(places, (worth + reached * chance, above, rank + 1, reached))
    if len(path) < tree.depth:
      heapq.heappush(places, (-reached * chance, path, 0, reached * chance))
  return paths


@pytest.mark.slow
@pytest.mark.full(but=["numbers1", "numbers3"])
@pytest.mark.parametrize("numbers", [(2, 1, 1), (6, 3, 2), (9, 4, 3), (12, 2, 5), (8, 7, 1)])
def test_the_worthiest_nodes_are_kept(numbers):
  tree = DySpec(*numbers)
  for seed in range(4):
    found = filled(tree, table(seed))
    assert len(found) == len(set(found)) == tree.nodes - 1
    assert set(found) == set(grown(tree, table(seed)))


@pytest.mark.slow
def test_a_level_has_its_width_at_most():
  tree = DySpec(7, 3, 3, width=2)
  found = filled(tree, table(0))
  assert [sum(len(p) == d for p in found) for d in (1, 2, 3)] == [2, 2, 2]
  assert level_sizes(4, 3, 2) == [2, 4, 4]


@pytest.mark.parametrize(
  ("numbers", "words"),
  [((1, 2, 2),
   r"`tree` must have at least 2 nodes, and other numbers of at.*got DySpec\(nodes=1, "
   "depth=2, children=2, "
   r"width=0\)\."), ((4, 0, 2), "numbers of at least 1, got DySpec"),
   ((4, 2, 2, -1), "numbers of at least 1, got DySpec"),
   ((5, 3, 1), "at most 4 nodes"), ((8, 2, 9, 2), "at most 5 nodes")],
)  # fmt: skip
def test_impossible_trees(numbers, words):
  with pytest.raises(ValueError, match=words):
    DySpec(*numbers)
