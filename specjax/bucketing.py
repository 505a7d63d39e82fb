"""A pass of the target over the nodes that a draft has, not over those that it could have.

Where a pass over 8 nodes takes longer than one over 2, as on CPU, a draft that found little should
not pay for one that found much. The loop is compiled with passes of several widths, and each round
runs the narrowest that holds the valid nodes of all rows.

Letters: B batch, N tree nodes, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Draft, Evaluation, Params, Target
from specjax.trees.structure import connected, gather, take_rows


def compact(draft: Draft, depth: int) -> Draft:
  """The same draft with the nodes that can be reached first, in their order; `depth` is D."""
  reached = connected(draft.valid, draft.parent, depth)
  order = jnp.argsort(~reached, axis=1, stable=True).astype(jnp.int32)
  place = jnp.argsort(order, axis=1).astype(jnp.int32)  # of each node among the reordered
  moved: Draft = take_rows(draft, order)
  return moved._replace(parent=gather(place, moved.parent), valid=gather(reached, order))


def narrowest(widths: tuple[int, ...], N: int, used: Array, run: Callable[[int], Any]) -> Any:
  """`run` at the first width that holds the `used` i32[B] rows, in the shapes of `run(N)`.

  What it lacks of these is 0.

  Args:
    widths: the other widths that are compiled, below N, in order (static).
  """
  if not widths:
    return run(N)
  whole = jax.eval_shape(functools.partial(run, N))

  def padded(width: int) -> Any:
    def pad(x: Array, like: jax.ShapeDtypeStruct) -> Array:
      return jnp.pad(x, [(0, full - some) for some, full in zip(x.shape, like.shape, strict=True)])

    return jax.tree.map(pad, run(width), whole)

  number = (used.max() > jnp.asarray(widths, jnp.int32)).sum(dtype=jnp.int32)
  runs = [functools.partial(padded, width) for width in widths]
  return lax.switch(number, [*runs, functools.partial(run, N)])


def evaluate(
  target: Target,
  params: Params,
  widths: tuple[int, ...],
  cache: Any,
  draft: Draft,
  mask: Array,
  hidden_layers: tuple[int, ...] = (),
) -> Evaluation:
  """`target.evaluate` of a compact draft; at nodes that are not valid its result may be 0.

  Args:
    widths: see `narrowest`.
    mask: bool[B, N, N], see `base.Evaluate`.
  """

  def run(width: int) -> Evaluation:
    part = (draft.tokens[:, :width], draft.depth[:, :width], mask[:, :width, :width])
    return target.evaluate(params, cache, *part, hidden_layers=hidden_layers)

  used = draft.valid.sum(1, dtype=jnp.int32)
  return cast(Evaluation, narrowest(widths, draft.tokens.shape[1], used, run))
