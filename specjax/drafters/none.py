"""Plain decoding drafts nothing."""

import jax.numpy as jnp

from specjax.base import Context, Drafter
from specjax.drafters.stateless import stateless


def _nothing(context: Context):
  return jnp.zeros((context.length.shape[0], 0), jnp.int32)


def none() -> Drafter:
  """Plain decoding is the loop with N = 1; its empty chain is exact under every rule."""
  return stateless("none", 0, _nothing)
