"""Recurrent layers over trees: what those of every kind share.

A head has a memory S [C, F]. Behind node i, whose parent is p, it is

    S_i = a_i S_p + k_i u_i^T,

with a gate a_i in 0..1, a key k_i [C] and an update u_i [F], and the node reads S_i^T q_i. What the
updates are is the kind's rule: `gated_delta.evaluate` or `state_space.evaluate`. By either a node
depends on its ancestors only. So one pass evaluates a tree, no node has a memory of its own, and
the memory behind a path follows from the k, u and gates of its nodes.

A rule is a function (memory f32[B, H, C, F], q, k f32[B, K, N, C], v f32[B, H, N, F], more given
[B, H, N], mask bool[B, N, N], goes_on bool[B, N] or None) -> (what the nodes read f32[B, H, N, F],
`Nodes`). In the mask j is i or above it, and parents come first; `goes_on` says whether what a node
sees begins with `memory`, None for all. A layer of the kind is a module (x [B, N, E], mask, state)
-> (what is added to the stream, `Nodes`, the convolution's inputs [B, 1, N, X]).

Letters: B batch, N nodes, K key heads, H value heads, a multiple of K, C and F the widths of a key
and a value, X channels of the convolution, W its width, A rows of an accepted path.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.kernels import tree_recurrence

PIECE = 64  # tokens of a text that are evaluated at once
_LEAST = -128.0  # of the logarithm of a gate, whose exponential is 0 from -104 on
dot = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """What a layer keeps of the committed text.

  Attributes:
    memory: f32[B, H, C, F].
    window: [B, W - 1, X], the newest inputs of the convolution, in order; 0 before the text.
  """

  memory: Array
  window: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Nodes:
  """What a pass leaves of its nodes, for `commit`.

  Attributes:
    key: f32[B, K, N, C], k.
    update: f32[B, H, N, F], u.
    gate: f32[B, H, N, 1], the logarithms of the gates.
    read: f32[B, H, N, F], what the nodes read, for later layers of the same pass; of a rule None.
  """

  key: Array
  update: Array
  gate: Array
  read: Array | None = None

  def __getitem__(self, key) -> "Nodes":
    """Of some of the nodes."""
    return jax.tree.map(lambda x: x[key], self)


Rule = Callable[..., tuple[Array, Nodes]]


def convolved(inputs: Array, kernel: Array, mask: Array, window: Array | None) -> Array:
  """The causal convolution of each channel along a node's ancestors.

  Args:
    inputs: [B, N, X].
    kernel: [X, W], the node's own weight last.
    mask: bool[B, N, N], node i sees node j.
    window: [B, W - 1, X], what is before the nodes, which are a tree; None before the text, or
      several in a row.
  """
  N, W = inputs.shape[1], kernel.shape[1]
  depth = mask.sum(2, dtype=jnp.int32) - 1
  above = None if window is None else jnp.concatenate([window.astype(inputs.dtype), inputs], 1)
  total = inputs * kernel[None, None, :, -1]
  for d in range(1, min(W, N) if above is None else W):
    if above is None:
      seen = jnp.pad(jnp.diagonal(mask, -d, 1, 2), ((0, 0), (d, 0)))
      found = jnp.where(seen[..., None], jnp.pad(inputs, ((0, 0), (d, 0), (0, 0)))[:, :N], 0)
    else:
      at = jnp.argmax(mask & (depth[:, :, None] - depth[:, None] == d), 2).astype(jnp.int32)
      row = W - 1 + jnp.where(depth >= d, at, depth - d)
      found = jnp.take_along_axis(above, row[..., None], 1)
    total += found * kernel[None, None, :, -1 - d]
  return total


def _sums(gate: Array, mask: Array) -> tuple[Array, Array]:
  """Of gates f32[B, H, N] the sums from behind j down to i, f32[B, H, N, N], and from the root on.

  A difference of two sums would lose digits where gates far above are strong. Sums of multiples of
  1 / 256 lose none, and those of the rests are small.
  """
  gate = jnp.maximum(gate, _LEAST)
  steps = jnp.round(gate * 256) / 256
  sums = dot("bij,sbhj->sbhi", mask.astype(jnp.float32), jnp.stack([steps, gate - steps]))
  between = sums[..., :, None] - sums[..., None, :]
  return between.sum(0), sums.sum(0)


def decays(gate: Array, mask: Array, goes_on: Array | None) -> tuple[Array, Array]:
  """What is left at node i of what node j wrote, f32[B, H, N, N], and of the memory before all
  nodes, f32[B, H, N]; of the logarithms of gates f32[B, H, N]."""
  between, since = _sums(gate, mask)
  decay = jnp.exp(jnp.where(mask[:, None], between, -jnp.inf))
  kept = jnp.exp(since)
  return decay, kept if goes_on is None else jnp.where(goes_on[:, None], kept, 0)


def by_kernel_or(
  definition: tree_recurrence.Definition,
  memory: Array,
  q: Array,
  k: Array,
  v: Array,
  gate: Array,
  rate: Array | None,
  mask: Array,
  goes_on: Array | None,
) -> tuple[Array, Array]:
  """What the nodes read and their updates, by the kernel where there is one, or the definition."""
  if tree_recurrence.refusal(memory, q) is not None:
    return definition(memory, q, k, v, gate, rate, mask, goes_on)
  if goes_on is None:
    goes_on = jnp.ones(mask.shape[:2], bool)
  return tree_recurrence.evaluate(definition, memory, q, k, v, gate, rate, mask, goes_on)


def advanced(memory: Array, nodes: Nodes, live: Array) -> Array:
  """The memory f32[B, H, C, F] behind the live bool[B, A] ones of nodes in a row."""
  gate = jnp.where(live[:, None], nodes.gate[..., 0], 0)
  sums = lax.cumsum(gate, 2, reverse=True)
  behind = jnp.pad(sums[..., 1:], ((0, 0), (0, 0), (0, 1)))
  weight = jnp.where(live[:, None], jnp.exp(behind), 0)[..., None]
  key = jnp.repeat(nodes.key, gate.shape[1] // nodes.key.shape[1], axis=1)
  return jnp.exp(sums[..., :1, None]) * memory + dot("bhac,bhaf->bhcf", key * weight, nodes.update)


def evaluated(
  rule: Rule, state: State | None, mask: Array, q: Array, k: Array, v: Array, *more: Array
) -> tuple[Array, Nodes]:
  """Nodes behind a state, or texts that begin with them; for a rule, and what it is given."""
  if state is None:
    return _read(rule, mask, q, k, v, *more)
  return rule(state.memory, q, k, v, *more, mask)


def _read(
  rule: Rule, mask: Array, q: Array, k: Array, v: Array, *more: Array
) -> tuple[Array, Nodes]:
  """Texts from no memory, piece by piece; in the mask texts are in a row."""
  B, H, N, F = v.shape
  size = min(N, PIECE)
  count = -(-N // size)
  memory = jnp.zeros((B, H, k.shape[-1], F), jnp.float32)
  if count == 1:
    return rule(memory, q, k, v, *more, mask)
  rest = count * size - N
  mask = jnp.pad(mask, ((0, 0), (0, rest), (0, rest)))

  def apart(x: Array) -> Array:
    x = jnp.pad(x, [(0, 0), (0, 0), (0, rest), *[(0, 0)] * (x.ndim - 3)])
    return jnp.moveaxis(x.reshape(*x.shape[:2], count, size, *x.shape[3:]), 2, 0)

  def step(memory: Array, piece: tuple[Array, tuple[Array, ...]]):
    start, given = piece[0] * size, piece[1]
    own = lax.dynamic_slice(mask, (0, start, start), (B, size, size))
    before = lax.dynamic_slice(mask, (0, start, jnp.maximum(start - 1, 0)), (B, size, 1))[..., 0]
    goes_on = before & (start > 0)
    found, nodes = rule(memory, *given, own, goes_on)
    memory = jnp.where(goes_on[:, -1, None, None, None], memory, 0)
    return advanced(memory, nodes, own[:, -1]), (found, nodes)

  given = tuple(map(apart, (q, k, v, *more)))
  _, found = lax.scan(step, memory, (jnp.arange(count, dtype=jnp.int32), given))

  def together(x: Array) -> Array:
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], count * size, *x.shape[4:])[:, :, :N]

  return jax.tree.map(together, found)


def begun(nodes: Nodes, inputs: Array, kernel: int) -> State:
  """The state before a text whose first pass leaves these nodes, and inputs [B, 1, N, X] of a
  convolution that sees so many tokens."""
  (B, H, _, F), C = nodes.update.shape, nodes.key.shape[3]
  window = jnp.zeros((B, kernel - 1, inputs.shape[3]), inputs.dtype)
  return State(jnp.zeros((B, H, C, F), jnp.float32), window)


def commit(state: State, nodes: Nodes, inputs: Array, path: Array, rows: Array) -> State:
  """The state behind the first rows i32[B] nodes of path i32[B, A]; inputs are [B, 1, N, X]."""

  def taken(x: Array) -> Array:
    return jnp.take_along_axis(x, path[:, None, :, None], 2)

  live = jnp.arange(path.shape[1], dtype=jnp.int32)[None] < rows[:, None]
  memory = advanced(state.memory, jax.tree.map(taken, dataclasses.replace(nodes, read=None)), live)
  text = jnp.concatenate([state.window, taken(inputs)[:, 0].astype(state.window.dtype)], 1)
  newest = rows[:, None] + jnp.arange(state.window.shape[1], dtype=jnp.int32)[None]
  return State(memory, jnp.take_along_axis(text, newest[..., None], 1))
