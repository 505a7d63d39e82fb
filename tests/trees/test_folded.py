"""Folding against the folded paths of frames, one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.base import Draft
from specjax.trees import IID, Static
from specjax.trees.base import Guesser, independent
from specjax.trees.folded import SILENT, Folded, fold
from specjax.trees.static import k_config


def spelled(tokens, parent, node: int) -> tuple[int, ...]:
  """What the frames down to a node say."""
  frames = []
  while node:
    frames.insert(0, int(tokens[node]))
    node = int(parent[node])
  told = [x for i, x in enumerate(frames) if i == 0 or x != frames[i - 1]]
  return tuple(x for x in told if x != SILENT)


def paths(draft) -> list[tuple[int, ...]]:
  """The texts of a draft's valid nodes but the root, whose parents must be valid too."""
  tokens, parent, depth, valid = map(np.asarray, draft[:4])
  found = []
  for node in np.flatnonzero(valid)[1:]:
    path, up = [], int(node)
    while up:
      assert valid[up] and parent[up] < up and depth[up] == depth[parent[up]] + 1
      path.insert(0, int(tokens[up]))
      up = int(parent[up])
    found.append(tuple(path))
  return found


@pytest.mark.parametrize("seed", range(20))
def test_a_folded_tree_says_what_its_frames_say_and_each_text_once(seed):
  rng = np.random.default_rng(seed)
  N, D = 24, 4
  parent, depth = np.zeros(N, np.int32), np.zeros(N, np.int32)
  for node in range(1, N):
    parent[node] = rng.choice(np.flatnonzero(depth[:node] < D))
    depth[node] = depth[parent[node]] + 1
  tokens = rng.integers(SILENT, 3, N).astype(np.int32)  # the root's may be silent's neighbour, too
  tokens[0] = 1
  draft = Draft(*(jnp.asarray(x[None]) for x in (tokens, parent, depth, np.ones(N, bool))))
  got = jax.tree.map(lambda x: x[0], jax.jit(fold, static_argnums=1)(draft, D))
  texts = paths(got)
  assert len(texts) == len(set(texts))
  assert set(texts) == {spelled(tokens, parent, node) for node in range(1, N)} - {()}
  assert np.asarray(got.tokens).min() >= 0 and got.tokens[0] == 1


def test_a_root_is_no_frame_and_is_repeated_by_a_guess():
  chain = Draft(
    *(jnp.asarray([x]) for x in ([2, 2, 2, -1, 2], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4], [True] * 5))
  )
  assert paths(jax.tree.map(lambda x: x[0], fold(chain, 4))) == [(2,), (2, 2)]


def test_a_tree_of_frames_is_filled_and_folded():
  logits = jnp.log(jnp.asarray([[[0.1, 0.6, 0.3], [0.2, 0.5, 0.3]]]))
  ids = jnp.asarray([7, 9, SILENT])
  tree = Folded(Static(k_config([2, 2])))
  draft = tree.fill(jnp.asarray([[9]]), Guesser(independent(logits), (), (), ids))
  assert (tree.nodes, tree.depth, tree.proposal) == (7, 2, "deterministic")
  assert draft.tokens.shape == (1, 7) and draft.log_probs is None
  # 9 9, 9 _, _ 9 and _ _ say 9 or nothing.
  assert paths(jax.tree.map(lambda x: x[0], draft)) == [(9,)]


def test_drawn_frames_are_refused():
  with pytest.raises(
    ValueError,
    match=(
      "`tree` must choose its nodes and draw none for frames that.*got "
      r"IID\(choices=\(\(0,\),\)\)\."
    ),
  ):
    Folded(IID(((0,),)))
