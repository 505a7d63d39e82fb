"""The distributions from which children were drawn, by proposal, for verifiers that correct for q.

Letters: B batch, N tree nodes, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft
from specjax.trees.structure import gather

KNOWN = frozenset({"deterministic", "chain", "iid", "without_replacement", "mixed", "independent"})
"""Proposals of which the distribution of every child is known."""


def normalise(p: Array) -> Array:
  """p with unit mass over the last axis; a row without mass stays as it is."""
  mass = p.sum(-1, keepdims=True)
  return p / jnp.where(mass > 0, mass, 1.0)


def residual(p: Array, q: Array) -> Array:
  """norm(max(p - q, 0)) over the last axis, p where nothing is left.

  A refusal where nothing is left has probability 0, but rounding can produce one.
  """
  left = jnp.maximum(p - q, 0.0)
  return jnp.where(left.sum(-1, keepdims=True) > 0, normalise(left), p)


def first_child(draft: Draft, proposal: str, size: int) -> Array:
  """f32[B, N, V], probabilities: row i is the distribution of the first child drawn at node i.

  For "independent" proposals row i is the distribution of node i itself, for "deterministic" ones
  it is 0.
  """
  if draft.log_probs is None:
    return jnp.zeros((*draft.tokens.shape, size))
  q = jnp.exp(draft.log_probs)
  if proposal == "mixed":
    assert draft.chosen is not None
    row = jnp.arange(len(q))[:, None]
    chosen = jnp.zeros(q.shape, bool).at[row, draft.parent, draft.tokens]
    q = normalise(jnp.where(chosen.max(draft.chosen & draft.valid), 0.0, q))
  return q


def child(token: Array, chosen: Array | None, row: Array, own: Array, proposal: str) -> Array:
  """f32[B, V], probabilities from which a child `token` i32[B] was drawn after its elder siblings.

  Args:
    chosen: bool[B] of a "mixed" proposal, see `Draft.chosen`.
    row: f32[B, V], the distribution at its parent, without these siblings.
    own: f32[B, V], `first_child` at the child itself.
  """
  if proposal == "independent":
    return own
  point = jax.nn.one_hot(token, row.shape[-1])
  if proposal == "deterministic":
    return point
  return row if chosen is None else jnp.where(chosen[:, None], point, row)


def without(row: Array, token: Array, proposal: str) -> Array:
  """`row` f32[B, V], the distribution at a node, after its child `token` i32[B] was drawn."""
  if proposal not in ("without_replacement", "mixed"):
    return row
  return normalise(jnp.where(jax.nn.one_hot(token, row.shape[-1]) > 0, 0.0, row))


def mass_at(p: Array, token: Array) -> Array:
  """f32[B]: p f32[B, V] at token i32[B]."""
  return gather(p, token[:, None])[:, 0]
