"""Greedy verification follows the child that is the target's argmax."""

import functools

import jax.numpy as jnp
from jax import Array

from specjax.base import PROPOSALS, Draft, Verifier
from specjax.trees.structure import match


@functools.cache
def greedy() -> Verifier:
  """GREEDY-EXACT: emits plain greedy decoding's tokens, up to floating-point ties, for any draft.

  This is the rule of blockwise parallel decoding (Stern et al. 2018, arXiv 1811.03115), for trees.
  """

  def verify(params, draft: Draft, log_probs: Array, features, noise, *, depth, proposal):
    return match(draft, jnp.argmax(log_probs, -1).astype(jnp.int32), depth)

  return Verifier("greedy", "GREEDY-EXACT", PROPOSALS, "zero", verify)
