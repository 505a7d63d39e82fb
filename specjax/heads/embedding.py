"""The embedding that a head reads: the target's, or a copy of its own that training may change.

Letters: B batch, N tokens, V vocabulary, E width.
"""

import jax.numpy as jnp
from jax import Array

from specjax.base import Params, StatesTarget
from specjax.models.linear import lookup

_OWN = "embedding"


def collection(target: StatesTarget, target_params: Params, own: bool) -> Params:
  """{"embedding": [V, E]}, the target's to begin with, for a head with one of its `own`."""
  return {_OWN: of_target(target, target_params)} if own else {}


def of_target(target: StatesTarget, target_params: Params) -> Array:
  """[V, E]."""
  return target.embed(target_params, jnp.arange(target.vocab_size, dtype=jnp.int32)[None])[0]


def embed(target: StatesTarget, target_params: Params, params: Params, tokens: Array) -> Array:
  """[B, N, E] of tokens i32[B, N], by the head's own embedding where `params` have one."""
  own = params["params"].get(_OWN)
  return target.embed(target_params, tokens) if own is None else lookup(own, tokens)
