"""Where two decodings first differ, and how close the target's choice was there."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params, Target
from specjax.decoding.model import Model
from specjax.eval.metrics import first_divergence


@functools.partial(jax.jit, static_argnames="target")
def _margin(target: Target, params: Params, tokens: Array, length: Array) -> Array:
  cache, _ = target.prefill(params, tokens, length, tokens.shape[1])
  root = jnp.take_along_axis(tokens, length[:, None] - 1, 1)
  evaluation = target.evaluate(params, cache, root, jnp.zeros_like(root), jnp.ones((1, 1, 1), bool))
  best = jax.lax.top_k(evaluation.logits[0, 0], 2)[0]
  return best[0] - best[1]


def margin(model: Model, ids: Sequence[int]) -> float:
  """The difference of the two largest logits after `ids`, by a plain forward; tiny at a tie."""
  width = max(32, 1 << (len(ids) - 1).bit_length())  # few shapes, so few compilations
  tokens = jnp.zeros((1, width), jnp.int32).at[0, : len(ids)].set(jnp.asarray(ids, jnp.int32))
  return float(_margin(model.target, model.params, tokens, jnp.asarray([len(ids)], jnp.int32)))


def divergences(
  model: Model, prompts: Sequence[list[int]], results: Sequence, reference: Sequence, greedy: bool
) -> list[dict[str, Any]]:
  """The prompts whose new ids differ, with the first such index and, if greedy, its margin."""
  found = []
  for i, (a, b) in enumerate(zip(results, reference, strict=True)):
    index = first_divergence(a.tokens, b.tokens)
    if index is not None:
      gap = margin(model, prompts[i] + b.tokens[:index]) if greedy else None
      found.append({"prompt": i, "index": index, "margin": gap})
  return found
