"""Graphs of guesses against the same procedure in plain Python, and what linking spares."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_grow import LOGITS, ROOT, B, V, by_path, log_probs_after, ranked

from specjax.decoding.method import method as pair
from specjax.drafters import draft_tree
from specjax.testing import (
  Case,
  emitted_distribution,
  random_table,
  table_model,
  target_distribution,
  total_variation,
)
from specjax.trees import Guesser
from specjax.trees.graph import Graph, expand, unroll
from specjax.verifiers import target_only

GRAPHS = [
  Graph(nodes=2, depth=1, beam=1),
  Graph(nodes=9, depth=4, beam=2, repeat=0),
  Graph(nodes=20, depth=4, beam=3, repeat=1),
  Graph(nodes=40, depth=5, beam=4, repeat=0, sibling=0.2, least=0.1),
  Graph(nodes=25, depth=5, beam=3, repeat=2),
]


def graph_of(log_probs_of, tree: Graph, root: int):
  """({path: {token: score}} of expanded paths, {path of a guess: path it goes on from})."""
  guesses, goes_on, level = {}, {}, [()]
  for depth in range(tree.depth):
    pool = []
    for path in level:
      log_probs = log_probs_of(path)
      best = ranked(log_probs)[: tree.beam]
      least = max(tree.sibling * np.exp(log_probs[best[0]]), 1e-300)
      guesses[path] = {x: log_probs[x] for x in best if np.exp(log_probs[x]) >= least}
      pool += [(*path, x) for x in guesses[path]]
    if depth == tree.depth - 1:
      break
    score = {path: score_of(path, guesses) for path in pool}

    def tail(path):
      text = (root, *path)
      return text[-tree.repeat - 1 :] if len(text) > tree.repeat else path

    following, waiting = [], []
    for path in sorted(pool, key=lambda path: -score[path]):
      known = [p for p in guesses if tail(p) == tail(path) and path[: len(p)] != p]
      fresh = [p for p in following if tail(p) == tail(path)]
      if known:
        goes_on[path] = known[0]
      elif fresh:
        goes_on[path] = fresh[0]
      elif np.exp(guesses[path[:-1]][path[-1]]) >= tree.least and len(following) < tree.beam:
        following.append(path)
        goes_on[path] = path
      else:
        waiting.append(path)
    for path in waiting:
      for other in following:
        if tail(other) == tail(path):
          goes_on[path] = other
    level = following
  return guesses, goes_on


def score_of(path, guesses) -> float:
  return sum(guesses[path[:d]][path[d]] for d in range(len(path)))


def walks(guesses, goes_on, tree: Graph) -> list[tuple[int, ...]]:
  """All walks through the graph, the likeliest N - 1 of them."""
  found = []

  def walk(path, at, score):
    if len(path) < tree.depth:
      for token, log_probs in guesses[at].items():
        found.append((score + log_probs, (*path, token)))
        if (*at, token) in goes_on:
          walk((*path, token), goes_on[(*at, token)], score + log_probs)

  walk((), (), 0.0)
  return [path for _, path in sorted(found, key=lambda x: (-x[0], len(x[1])))[: tree.nodes - 1]]


@functools.partial(jax.jit, static_argnums=0)
def grown(tree, logits):
  step, carry = by_path(logits), jnp.zeros((B, 1), jnp.int32)
  guesser = Guesser(step, carry)
  links = expand(tree, ROOT, guesser)
  return tree.fill(ROOT, guesser), links, unroll(tree, links, ROOT)


def valid_paths(draft, b: int) -> list[tuple[int, ...]]:
  paths: list[tuple[int, ...]] = [()]
  for node in range(1, draft.tokens.shape[1]):
    assert 0 <= draft.parent[b, node] < node
    paths.append((*paths[draft.parent[b, node]], int(draft.tokens[b, node])))
  np.testing.assert_array_equal(draft.depth[b], list(map(len, paths)))
  return [path for path, ok in zip(paths, draft.valid[b], strict=True) if ok][1:]


@pytest.mark.parametrize("kind", ["random", "minus infinity", "nan"])
@pytest.mark.parametrize("tree", GRAPHS, ids=str)
def test_the_tree_is_the_unrolled_graph(tree, kind):
  draft, _, again = jax.device_get(grown(tree, LOGITS[kind]))
  assert draft.tokens.shape == (B, tree.nodes)
  for b in range(B):
    log_probs_of = functools.lru_cache(None)(functools.partial(log_probs_after, LOGITS[kind][b]))
    want = walks(*graph_of(log_probs_of, tree, int(ROOT[b, 0])), tree)
    got = valid_paths(draft, b)
    assert len(set(got)) == len(got) and set(got) == set(want)
  np.testing.assert_array_equal(draft.tokens, again.tokens)


def test_a_repetitive_distribution_is_expanded_once():
  """One of two tokens, then one of two others, and so on: after few expansions all is known."""
  pairs = np.full((V, V), -np.inf, np.float32)
  pairs[[2, 3, 5], 0], pairs[[2, 3, 5], 1] = np.log(0.6), np.log(0.4)
  pairs[[0, 1], 2], pairs[[0, 1], 3] = np.log(0.7), np.log(0.3)
  root = jnp.full((1, 1), 5, jnp.int32)

  def step(level, tokens, carry, memory, mask):
    return jnp.asarray(pairs)[tokens], carry, memory

  @functools.partial(jax.jit, static_argnums=0)
  def run(tree):
    links = expand(tree, root, Guesser(step))
    return jnp.isfinite(links.log_probs).any(-1).sum(), unroll(tree, links, root)

  # All 62 walks of up to five steps hang below 31 nodes. Of these are expanded the root, 0, 1,
  # 02, 03, 020 and 0202, whose like is on their own path.
  expansions, draft = run(Graph(nodes=63, depth=5, beam=4, repeat=0))
  assert expansions == 7 and draft.valid.all()
  assert len(set(np.asarray(draft.parent)[0, 1:].tolist())) == 31
  expansions, _ = run(Graph(nodes=63, depth=5, beam=4, repeat=5))  # links nothing
  assert expansions == 1 + 2 + 4 + 4 + 4


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_decodes_without_loss(temperature):
  drafter = draft_tree(table_model(3), Graph(nodes=6, depth=3, beam=2, repeat=0))
  assert drafter.proposal == "deterministic"
  method = pair(table_model(3), drafter, target_only())
  case = Case(np.asarray(random_table(0, 3)["logits"]), prompt=(0, 2), temperature=temperature)
  log_probs = emitted_distribution(case, method, random_table(100, 3))
  assert total_variation(log_probs, target_distribution(case)) < 1e-6


@pytest.mark.parametrize(
  ("numbers", "words"),
  [
    ((9, 2, 2), r"at most 1 \+ beam \+ \.\. \+ beam\*\*depth = 7"),
    ((4, 4, 2), "more nodes than depth"),
    (
      (4, 2, 0),
      r"`tree` must have depth and beam of at least 1, and more.*got Graph\(nodes=4, depth=2, "
      r"beam=0, repeat=1, sibling=0\.0,",
    ),
  ],
)
def test_impossible_graphs_are_refused(numbers, words):
  with pytest.raises(ValueError, match=words):
    Graph(*numbers)
