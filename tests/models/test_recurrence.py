"""Rules of recurrent layers over trees against their recurrences, token by token, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import gated_delta, recurrence, state_space
from specjax.models.recurrence import State
from specjax.trees.structure import ancestors

B, K, H, C, F, W = 3, 2, 4, 8, 6, 4
X = 2 * K * C + H * F
ATOL = 1e-5
# 16 nodes, 6 deep; a chain; and a tree as wide as it can be.
TREES = {
  "deep": [0, 0, 0, 1, 1, 2, 3, 3, 4, 6, 6, 7, 9, 9, 12, 12],
  "chain": [0, 0, 1, 2, 3, 4],
  "wide": [0] * 9,
  "root": [0],
}
# What a token writes with its key: of its value, its rate, and what the key reads.
WRITTEN = {
  "gated delta": lambda v, rate, old: rate * (v - old),
  "state space": lambda v, rate, old: rate * v,
}
rng = np.random.default_rng(0)
KERNEL = rng.normal(size=(X, W))
commit = jax.jit(recurrence.commit)


def drawn(N, strongest=2.0):
  """Inputs of the convolution [B, N, X], queries, and logarithms of gates and rates [B, H, N]."""
  inputs, q = rng.normal(size=(B, N, X)), rng.normal(size=(B, K, N, C))
  gate = -rng.uniform(0, strongest, (B, H, N)) * rng.integers(0, 2, (B, H, N))
  return inputs, q, gate, rng.uniform(size=(B, H, N))


def parts(x):
  """k, of length 1, and v, of what the convolution gives, [.., X]."""
  heads = x[..., K * C : 2 * K * C].reshape(*x.shape[:-1], K, C)
  return heads / np.linalg.norm(heads, axis=-1, keepdims=True), x[..., 2 * K * C :].reshape(
    *x.shape[:-1], H, F
  )


def chain(rule, b, given, rows, memory=None, window=None):
  """float64: (what each token of a chain reads [len(rows), H, F], memory, window)."""
  inputs, q, gate, rate = given
  memory = np.zeros((H, C, F)) if memory is None else memory.copy()
  window = np.zeros((W - 1, X)) if window is None else window
  out = []
  for i in rows:
    seen = np.concatenate([window, inputs[b, i][None]])
    k, v = parts((seen * KERNEL.T).sum(0))
    window = seen[1:]
    read = np.zeros((H, F))
    for h in range(H):
      key = k[h // (H // K)]
      memory[h] *= np.exp(gate[b, h, i])
      memory[h] += np.outer(key, WRITTEN[rule](v[h], rate[b, h, i], memory[h].T @ key))
      read[h] = memory[h].T @ q[b, h // (H // K), i]
    out.append(read)
  return np.array(out), memory, window


@functools.partial(jax.jit, static_argnums=0)
def pass_over(rule, given, mask, state=None):
  """(what the nodes read [B, H, N, F], what they leave, their inputs [B, 1, N, X])."""
  inputs, q, gate, rate = (jnp.asarray(x, jnp.float32) for x in given)
  window = None if state is None else state.window
  y = recurrence.convolved(inputs, jnp.asarray(KERNEL, jnp.float32), mask, window)
  heads = y[..., K * C : 2 * K * C].reshape(B, -1, K, C)
  k = heads / jnp.linalg.norm(heads, axis=-1, keepdims=True)
  v = y[..., 2 * K * C :].reshape(B, -1, H, F)
  k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
  if rule == "gated delta":
    own, given = gated_delta.evaluate, (q, k, v, gate, rate)
  else:
    own, given = state_space.evaluate, (q, k, rate[..., None] * v, gate)
  return *recurrence.evaluated(own, state, mask, *given), inputs[:, None]


def some_state():
  memory, window = rng.normal(size=(B, H, C, F)), rng.normal(size=(B, W - 1, X))
  return State(jnp.asarray(memory, jnp.float32), jnp.asarray(window, jnp.float32))


def of_row(state, b):
  return np.asarray(state.memory[b], np.float64), np.asarray(state.window[b], np.float64)


def path_of(parent, node):
  path = [node]
  while path[-1]:
    path.append(parent[path[-1]])
  return path[::-1]


@pytest.mark.parametrize("rule", WRITTEN)
@pytest.mark.parametrize("strongest", [2.0, 40.0])
@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_one_chain_for_each_node(name, strongest, rule):
  """And the state behind a part of any path is the chain's."""
  parent = TREES[name]
  N, state, given = len(parent), some_state(), drawn(len(parent), strongest)
  mask = ancestors(jnp.broadcast_to(jnp.array(parent), (B, N)), 6)
  found, nodes, inputs = pass_over(rule, given, mask, state)
  leaves = [node for node in range(N) if node not in parent[1:] or N == 1]
  longest = max((path_of(parent, leaf) for leaf in leaves), key=len)
  for b in range(B):
    for leaf in leaves:
      path = path_of(parent, leaf)
      want, *_ = chain(rule, b, given, path, *of_row(state, b))
      np.testing.assert_allclose(found[b][:, path].swapaxes(0, 1), want, rtol=0, atol=ATOL)
  rows = np.array([len(longest), 0, len(longest) // 2])  # ragged, and one that is done
  path = jnp.broadcast_to(jnp.array([*longest, longest[-1]]), (B, len(longest) + 1))
  after = commit(state, nodes, inputs, path, jnp.asarray(rows, jnp.int32))
  for b in range(B):
    _, memory, window = chain(rule, b, given, longest[: rows[b]], *of_row(state, b))
    np.testing.assert_allclose(after.memory[b], memory, rtol=0, atol=ATOL)
    np.testing.assert_allclose(after.window[b], window, rtol=0, atol=1e-6)
  assert jax.tree.all(jax.tree.map(lambda x, y: (x[1] == y[1]).all(), after, state))


@pytest.mark.parametrize("rule", WRITTEN)
@pytest.mark.parametrize("N", [1, 2, 30, 150])
def test_texts_in_a_row_are_chains_of_their_own(N, rule):
  """Texts end inside and between the pieces that are read."""
  given, starts = drawn(N), [[0], [0, N // 3, N // 2], [0, min(64, N - 1), min(65, N - 1)]]
  segment = np.stack([np.searchsorted(own, np.arange(N), side="right") for own in starts])
  mask = np.tril(np.ones((N, N), bool)) & (segment[:, :, None] == segment[:, None])
  found, *_ = pass_over(rule, given, jnp.asarray(mask))
  for b in range(B):
    for text in np.unique(segment[b]):
      rows = np.flatnonzero(segment[b] == text)
      want, *_ = chain(rule, b, given, rows)
      np.testing.assert_allclose(found[b][:, rows].swapaxes(0, 1), want, rtol=0, atol=ATOL)


@pytest.mark.parametrize("rule", WRITTEN)
def test_a_text_in_pieces_ends_where_it_ends_at_once(rule):
  N, sizes = 40, (7, 1, 32)
  given = drawn(N)
  empty = State(jnp.zeros((B, H, C, F)), jnp.zeros((B, W - 1, X)))
  state, start = empty, 0
  for size in sizes:
    own = [
      given[0][:, start : start + size],
      *(x[:, :, start : start + size] for x in given[1:]),
    ]
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool)), (B, size, size))
    _, nodes, inputs = pass_over(rule, own, mask, state)
    path = jnp.broadcast_to(jnp.arange(size), (B, size))
    state = commit(state, nodes, inputs, path, jnp.full(B, size))
    start += size
  for b in range(B):
    _, memory, window = chain(rule, b, given, range(N))
    np.testing.assert_allclose(state.memory[b], memory, rtol=0, atol=ATOL)
    np.testing.assert_allclose(state.window[b], window, rtol=0, atol=1e-6)


def size(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  ("rule", "sizes", "bytes_"),
  [
    (gated_delta.evaluate, (16, 32, 128, 128), (919_552, 2_195_456, 35_127_296)),
    (state_space.evaluate, (1, 48, 128, 64), (420_864, 1_612_800, 25_804_800)),
  ],
  ids=["Qwen3-Next", "Granite 4 tiny"],
)
def test_sixteen_nodes_leave_less_than_one_state(rule, sizes, bytes_):
  """And far less than sixteen, which they would take if each had one."""
  (K, H, C, F), N, W = sizes, 16, 4
  X = 2 * K * C + H * F
  memory, q, v, gate, mask = (
    jax.ShapeDtypeStruct(shape, jnp.float32)
    for shape in ((1, H, C, F), (1, K, N, C), (1, H, N, F), (1, H, N), (1, N, N))
  )
  rates = (gate,) if rule is gated_delta.evaluate else ()
  mask = jax.ShapeDtypeStruct(mask.shape, bool)
  _, nodes = jax.eval_shape(rule, memory, q, q, v, gate, *rates, mask)
  left, state = size(nodes) + 4 * N * X, size(memory) + 4 * (W - 1) * X
  assert (left, state, N * state) == bytes_
