"""Where two greedy decodings part, and how close the target's choice was there."""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params, Target
from specjax.decoding.model import Model


@functools.partial(jax.jit, static_argnames="target")
def _margin(target: Target, params: Params, tokens: Array, length: Array) -> Array:
  cache, _ = target.prefill(params, tokens, length, tokens.shape[1])
  root = jnp.take_along_axis(tokens, length[:, None] - 1, 1)
  evaluation = target.evaluate(params, cache, root, jnp.zeros_like(root), jnp.ones((1, 1, 1), bool))
  best = jax.lax.top_k(evaluation.logits[0, 0], 2)[0]
  return best[0] - best[1]


def margin(model: Model, ids: list[int]) -> float:
  """Top-1 minus top-2 logit after `ids`, by a plain forward. Tiny at a floating-point tie."""
  width = max(32, 1 << (len(ids) - 1).bit_length())  # few shapes, few compilations
  tokens = jnp.zeros((1, width), jnp.int32).at[0, : len(ids)].set(jnp.asarray(ids, jnp.int32))
  return float(_margin(model.target, model.params, tokens, jnp.asarray([len(ids)], jnp.int32)))
