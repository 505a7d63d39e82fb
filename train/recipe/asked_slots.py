"""The vocabulary product of a denoiser's loss: of the slots that count alone, a part at a time.

Logits f32[B, T, V] of whole rows can be larger than all that a network keeps for its gradient: 2 GB
for each row of 4096 tokens and 128k tokens of vocabulary. Here the slots that a loss asks for come
first, `ROWS` of them at a time are multiplied with the vocabulary, and in the backward pass once
more. Parts without such a slot are left out.

Letters: B batch, T row length, E width, V vocabulary, G groups, N slots of a group.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

ROWS = 512

# (logits f32[..., V], right tokens i32[...]) -> figures of each slot, arrays [...]
Figures = Callable[[Array, Array], tuple[Array, ...]]


def cross_entropy(logits: Array, tokens: Array) -> tuple[Array, Array]:
  """(nats f32[...], whether the likeliest token is the right one bool[...])."""
  nats = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
  return nats, logits.argmax(-1) == tokens


def of_asked(
  figures: Figures,
  head: Callable[[Array], Array],
  states: Array,
  tokens: Array,
  asked: Array,
  groups: int = 1,
) -> tuple[Array, ...]:
  """The figures [B, T] of the slots that are asked for, and zeros of the others.

  Slots are sorted within groups of rows. With a group for each device of a mesh that shares the
  rows, no state leaves its device.

  Args:
    figures, groups: static; G divides B.
    head: [..., E] -> logits f32[..., V].
    states: [B, T, E], from which the head says each slot.
    tokens: i32[B, T], what is right.
    asked: bool[B, T].
  """
  B, T = asked.shape
  N = B * T // groups
  size = min(ROWS, N)
  order = jnp.argsort(~asked.reshape(groups, N), axis=1, stable=True)

  def parts(x: Array) -> Array:
    """[B, T, any] -> [parts, G, size, any], slots that are asked for first."""
    x = jnp.take_along_axis(x.reshape(groups, N, -1), order[..., None], 1)
    x = jnp.pad(x, ((0, 0), (0, -N % size), (0, 0)))
    return x.reshape(groups, -1, size, x.shape[-1]).swapaxes(0, 1)

  @jax.checkpoint
  def said(x: Array, right: Array, counts: Array) -> tuple[Array, ...]:
    return tuple(jnp.where(counts, f, jnp.zeros_like(f)) for f in figures(head(x), right))

  def unsaid(x: Array, right: Array, counts: Array) -> tuple[Array, ...]:
    return tuple(jnp.zeros(f.shape, f.dtype) for f in jax.eval_shape(said, x, right, counts))

  def part(_: None, one: tuple[Array, Array, Array]) -> tuple[None, tuple[Array, ...]]:
    return None, jax.lax.cond(one[2].any(), said, unsaid, *one)

  slots = parts(states), parts(tokens[..., None])[..., 0], parts(asked[..., None])[..., 0]
  found = jax.lax.scan(part, None, slots)[1]
  back = jnp.argsort(order, axis=1)
  rows = (x.swapaxes(0, 1).reshape(groups, -1) for x in found)
  return tuple(jnp.take_along_axis(x, back, 1).reshape(B, T) for x in rows)
