"""Laws of drafted children: what a rule that corrects for q must know of each kind of proposal.

Letters: B batch, N tree nodes, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Draft
from specjax.trees.structure import at

KNOWN = frozenset({"point", "chain", "iid", "distinct", "mixed", "own"})
"""Proposals of which the law of every child is known."""


def normal(law: Array) -> Array:
  """Unit mass over the last axis; a row without mass stays as it is."""
  mass = law.sum(-1, keepdims=True)
  return law / jnp.where(mass > 0, mass, 1.0)


def residual(p: Array, q: Array) -> Array:
  """norm(max(p - q, 0)) over the last axis.

  Where nothing is left a refusal has probability zero; rounding may still produce one: then p.
  """
  left = jnp.maximum(p - q, 0.0)
  return jnp.where(left.sum(-1, keepdims=True) > 0, normal(left), p)


def first_law(draft: Draft, proposal: str, size: int) -> Array:
  """f32[B, N, V]: row i is the law of the first child drawn at node i.

  For "own" proposals row i is the law of node i itself; "point" ones have none, and rows of 0.
  """
  if draft.law is None:
    return jnp.zeros((*draft.tokens.shape, size))
  law = jnp.exp(draft.law)
  if proposal == "mixed":
    assert draft.chosen is not None
    row = jnp.arange(len(law))[:, None]
    chosen = jnp.zeros(law.shape, bool).at[row, draft.parent, draft.tokens]
    law = normal(jnp.where(chosen.max(draft.chosen & draft.valid), 0.0, law))
  return law


def law_of(token: Array, chosen: Array | None, row: Array, own: Array, proposal: str) -> Array:
  """f32[B, V]: the law from which a child was drawn, given the siblings before it.

  Args:
    token: i32[B], the child's.
    chosen: bool[B] of a "mixed" proposal, see `Draft.chosen`.
    row: f32[B, V], the law at its parent, without these siblings.
    own: f32[B, V], `first_law` at the child itself.
  """
  if proposal == "own":
    return own
  point = jax.nn.one_hot(token, row.shape[-1])
  if proposal == "point":
    return point
  return row if chosen is None else jnp.where(chosen[:, None], point, row)


def without(row: Array, token: Array, proposal: str) -> Array:
  """The law f32[B, V] at a node after one of its children, `token` i32[B], was drawn."""
  if proposal not in ("distinct", "mixed"):
    return row
  return normal(jnp.where(jax.nn.one_hot(token, row.shape[-1]) > 0, 0.0, row))


def mass_at(law: Array, token: Array) -> Array:
  """f32[B]: law f32[B, V] at token i32[B]."""
  return at(law, token[:, None])[:, 0]
