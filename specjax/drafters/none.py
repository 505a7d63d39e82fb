"""No draft: plain decoding."""

import functools

import jax.numpy as jnp

from specjax.base import Draft, Drafter
from specjax.trees.structure import at


@functools.cache
def none() -> Drafter:
  """Plain decoding as the loop with N = 1: an empty chain, exact under every rule."""

  def init(params, target_params, context, features, capacity):
    return ()

  def propose(params, target_params, state, context, settings, noise):
    root = at(context.tokens, context.length[:, None] - 1)
    zero = jnp.zeros_like(root)
    return Draft(root, zero, zero, jnp.ones(root.shape, bool)), state

  def update(params, target_params, state, draft, evaluation, verdict, rows):
    return state

  return Drafter("none", "chain", 1, 0, init, propose, update)
