"""Grown trees against the same procedures in plain Python, on heads that are tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.trees import Dynamic, Guesser, Static
from specjax.trees.base import independent
from specjax.trees.structure import ancestors

B, STATES, V = 4, 31, 7
ROOT = jnp.asarray([[3], [0], [6], [2]], jnp.int32)
RNG = np.random.default_rng(0)
# After state s and token x a head is in state NEXT[s, x]; LOGITS[kind][b, s] is what it says there.
NEXT = RNG.integers(0, STATES, (STATES, V)).astype(np.int32)
RANDOM = RNG.normal(size=(B, STATES, V)).astype(np.float32)
HOLES = RNG.random(RANDOM.shape)
LOGITS = {
  "random": RANDOM,
  "sharp": 20 * RANDOM,
  # Every score of a level is the same number.
  "ties": np.zeros_like(RANDOM),
  # The best child scores as much as its parent, the others minus infinity.
  "certain": np.where(RANDOM.max(-1, keepdims=True) == RANDOM, 0, -np.inf).astype(np.float32),
  "minus infinity": np.where(HOLES < 0.4, -np.inf, RANDOM).astype(np.float32),
  "nan": np.where(HOLES.min(-1, keepdims=True) < 0.1, np.nan, RANDOM).astype(np.float32),
  "all nan": np.full_like(RANDOM, np.nan),
}
DYNAMIC = [
  Dynamic(nodes=2, depth=1, beam=1),
  Dynamic(nodes=5, depth=1, beam=5),
  Dynamic(nodes=5, depth=4, beam=1),
  Dynamic(nodes=11, depth=3, beam=4),
  Dynamic(nodes=1 + 3 + 2 * 9, depth=3, beam=3),
  Dynamic(nodes=20, depth=4, beam=6),
]
STATIC = [
  Static(choices)
  for choices in (
    ((0,),),
    ((0,), (0, 0), (0, 0, 0)),
    ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 2)),
    ((2,), (2, 5), (0,), (2, 5, 1), (0, 3), (0, 1), (2, 5, 1, 0)),
  )
]


def by_path(logits):
  """The step of a head whose guesses depend on the whole path from the root."""

  def step(level, tokens, state, memory, mask):
    if level:
      state = jnp.asarray(NEXT)[state, tokens]
    return logits[jnp.arange(B)[:, None], state], state, memory

  return step


@functools.partial(jax.jit, static_argnums=0)
def compiled_grow(tree, logits):
  return tree.fill(ROOT, Guesser(by_path(logits), jnp.zeros((B, 1), jnp.int32)))


@functools.partial(jax.jit, static_argnums=0)
def compiled_fill(tree, logits):
  return tree.fill(ROOT, Guesser(independent(logits[:, :5])))


def grown(tree, logits):
  return jax.device_get(compiled_grow(tree, logits))


def filled(tree, logits):
  return jax.device_get(compiled_fill(tree, logits))


def log_probs_after(table, path) -> np.ndarray:
  """Log-probabilities after a path of tokens; what is not a number is impossible."""
  state = 0
  for token in path:
    state = NEXT[state, token]
  with np.errstate(invalid="ignore"):
    x = table[state].astype(np.float64)
    log_probs = x - x.max()
    log_probs = log_probs - np.log(np.exp(log_probs).sum())
  return np.where(np.isnan(log_probs), -np.inf, log_probs)


def ranked(log_probs) -> list[int]:
  """Tokens from the likeliest on, ties to the lower."""
  return sorted(range(V), key=lambda token: (-log_probs[token], token))


def surest(log_probs_of, tree: Dynamic) -> list[tuple[int, ...]]:
  """EAGLE-2: expand the best paths of each level, then keep the best of all that were seen."""
  seen, beam = [], [((), 0.0)]
  for _ in range(tree.depth):
    children = []
    for path, score in beam:
      log_probs = log_probs_of(path)
      children += [((*path, x), score + log_probs[x]) for x in ranked(log_probs)[: tree.beam]]
    seen += children
    beam = sorted(children, key=lambda child: -child[1])[: tree.beam]
  order = sorted(range(len(seen)), key=lambda i: -seen[i][1])  # stable: ties to who came first
  return [seen[i][0] for i in sorted(order[: tree.nodes - 1])]


def paths_of(draft, b: int) -> list[tuple[int, ...]]:
  """The tokens below the root on the way to each node but the root."""
  tokens, parent = draft.tokens[b].tolist(), draft.parent[b].tolist()
  paths: list[tuple[int, ...]] = [()]
  for i in range(1, len(tokens)):
    assert 0 <= parent[i] < i
    paths.append((*paths[parent[i]], tokens[i]))
  assert parent[0] == 0
  np.testing.assert_array_equal(draft.depth[b], [len(path) for path in paths])
  return paths[1:]


def check_form(draft, tree):
  nodes, depth = tree.nodes, tree.depth
  for x in draft[:3]:
    assert (x.shape, x.dtype) == ((B, nodes), jnp.int32)
  assert draft.valid.all()
  assert draft.depth.max() <= depth
  np.testing.assert_array_equal(draft.tokens[:, :1], ROOT)


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("tree", DYNAMIC, ids=str)
def test_dynamic_trees_are_eagle2s(tree, kind):
  """Closed under ties, impossible tokens and NaN too: all paths of the oracle are there."""
  draft = grown(tree, LOGITS[kind])
  check_form(draft, tree)
  for b in range(B):
    log_probs_of = functools.lru_cache(None)(functools.partial(log_probs_after, LOGITS[kind][b]))
    assert paths_of(draft, b) == surest(log_probs_of, tree)


@pytest.mark.parametrize("tree", DYNAMIC, ids=str)
def test_ties_between_levels_keep_the_tree_closed(tree):
  """Steps of probability 1 and 1/2 tie parents, children and cousins in every way."""
  rng = np.random.default_rng(1)
  for _ in range(20):
    certain = rng.random((B, STATES, 1)) < 0.5
    support = np.argsort(rng.random((B, STATES, V)), -1) < np.where(certain, 1, 2)
    draft = grown(tree, np.where(support, jnp.float32(0), -jnp.inf))
    for b in range(B):
      paths = paths_of(draft, b)
      assert len(set(paths)) == len(paths)
      assert {path[:-1] for path in paths} <= {(), *paths}


@pytest.mark.parametrize("tree", DYNAMIC, ids=str)
def test_dynamic_trees_of_guesses_by_depth(tree):
  draft = filled(tree, LOGITS["random"])
  check_form(draft, tree)
  for b in range(B):
    log_probs_of = functools.partial(lambda b, path: warp(RANDOM[b, len(path)]), b)
    assert paths_of(draft, b) == surest(log_probs_of, tree)


def warp(x):
  return x - np.log(np.exp(x.astype(np.float64)).sum())


@pytest.mark.parametrize("kind", ["random", "ties", "minus infinity"])
@pytest.mark.parametrize("tree", STATIC, ids=str)
def test_static_trees_hold_the_ranks(tree, kind):
  draft = grown(tree, LOGITS[kind])
  check_form(draft, tree)
  for b in range(B):
    want = set()
    for ranks in tree.choices:
      path: tuple[int, ...] = ()
      for rank in ranks:
        path += (ranked(log_probs_after(LOGITS[kind][b], path))[rank],)
      want.add(path)
    assert len(want) == len(tree.choices)
    assert set(paths_of(draft, b)) == want


@pytest.mark.parametrize("tree", STATIC, ids=str)
def test_static_trees_of_guesses_by_depth(tree):
  draft = filled(tree, RANDOM)
  for b in range(B):
    best = [ranked(RANDOM[b, d]) for d in range(4)]
    want = {tuple(best[d][rank] for d, rank in enumerate(ranks)) for ranks in tree.choices}
    assert set(paths_of(draft, b)) == want


@pytest.mark.full(but=["Static*", "Dynamic(nodes=11*", "Dynamic(nodes=22*", "Dynamic(nodes=5*"])
@pytest.mark.parametrize("tree", [*DYNAMIC[2:], *STATIC], ids=str)
def test_a_head_sees_its_rows_of_the_way_to_the_root(tree):
  """`carry` comes from the parent; the mask picks, of all rows kept, the node's and those above."""

  @jax.jit
  def run():
    levels = []

    def step(level, tokens, number, memory, mask):
      if level:  # the path, as digits in base V + 1
        number = number * (V + 1) + tokens + 1
      memory = jnp.concatenate([memory, number], 1)
      levels.append((number, memory, mask))
      assert level == len(levels) - 1
      return jnp.asarray(RANDOM)[jnp.arange(B)[:, None], number % STATES], number, memory

    zero = jnp.zeros((B, 1), jnp.int32)
    return tree.fill(ROOT, Guesser(step, zero, zero[:, :0])), levels

  draft, levels = jax.device_get(run())
  assert len(levels) == tree.depth
  above = ancestors(draft.parent, len(levels))
  for b in range(B):
    expanded: list[tuple[int, ...]] = []
    for level, (number, memory, mask) in enumerate(levels):
      paths = [digits(int(x)) for x in number[b]]
      expanded += paths
      assert [digits(int(x)) for x in memory[b]] == expanded
      assert mask.shape == (B, len(paths), len(expanded))
      for path, sees in zip(paths, mask[b].tolist(), strict=True):
        assert len(path) == level
        assert sees == [path[: len(other)] == other for other in expanded]
    assert {path[:-1] for path in paths_of(draft, b)} <= set(expanded)
    np.testing.assert_array_equal(above[b].sum(-1), draft.depth[b] + 1)


def digits(number: int) -> tuple[int, ...]:
  path = []
  while number:
    number, digit = divmod(number, V + 1)
    path.append(digit - 1)
  return tuple(path[::-1])


@pytest.mark.parametrize("tree", [DYNAMIC[3], STATIC[2]], ids=str)
def test_a_reduced_vocabulary_is_mapped_and_the_root_is_not(tree):
  """The head too is told the target's ids."""
  ids = jnp.asarray([1, 2, 40, 41, 50, 77, 99], jnp.int32)
  inner = by_path(jnp.asarray(RANDOM))

  def step(level, tokens, *rest):
    return inner(level, jnp.argmax(tokens[:, :, None] == ids[None, None], 2), *rest)

  guesser = Guesser(step, jnp.zeros((B, 1), jnp.int32), (), ids)
  mapped = jax.jit(lambda: tree.fill(ROOT, guesser))()
  plain = grown(tree, RANDOM)
  np.testing.assert_array_equal(mapped.tokens[:, 1:], np.asarray(ids)[plain.tokens[:, 1:]])
  np.testing.assert_array_equal(mapped.tokens[:, :1], ROOT)
  np.testing.assert_array_equal(mapped.parent, plain.parent)


@pytest.mark.parametrize(
  ("numbers", "words"),
  [
    ((3, 3, 3), "more nodes than depth"),
    ((23, 3, 3), r"at most 1 \+ beam \+ \(depth - 1\) \* beam\*\*2 = 22"),
    ((4, 3, 0), "depth and beam of at least 1, .*got Dynamic"),
    ((4, 0, 3), "depth and beam of at least 1, .*got Dynamic"),
  ],
)
def test_impossible_trees_are_refused(numbers, words):
  with pytest.raises(ValueError, match=words):
    Dynamic(*numbers)


def test_a_rank_past_the_vocabulary_is_refused():
  with pytest.raises(ValueError, match=f"tree has rank {V}: the head guesses among {V}"):
    grown(Static(((V,),)), RANDOM)
