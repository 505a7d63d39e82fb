"""Ranks of slots by a score, the best first; of equals the one on the left.

Letters: B batch, W window.
"""

import jax.numpy as jnp
from jax import Array


def rank(score: Array, among: Array) -> Array:
  """i32[B, W], from 0; slots that are not `among` bool[B, W] come last."""
  order = jnp.argsort(jnp.where(among, -score, jnp.inf), axis=1)
  return jnp.argsort(order, axis=1).astype(jnp.int32)


def descending(score: Array, among: Array, fill: float) -> Array:
  """f32[B, W]: scores from the best on, then `fill`."""
  return -jnp.sort(jnp.where(among, -score, -fill), axis=1)
