"""Where two decodings first differ, and how close the target's choice was there."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Params, Target
from specjax.eval.metrics import first_divergence
from specjax.names.load import Model


@functools.partial(jax.jit, static_argnames="target")
def _logits(target: Target, params: Params, tokens: Array, length: Array) -> Array:
  cache, _ = target.prefill(params, tokens, length, tokens.shape[1])
  root = jnp.take_along_axis(tokens, length[:, None] - 1, 1)
  evaluation = target.evaluate(params, cache, root, jnp.zeros_like(root), jnp.ones((1, 1, 1), bool))
  return evaluation.logits[0, 0]


def logits(model: Model, ids: Sequence[int]) -> np.ndarray:
  """The logits f32[V] after `ids`, by a plain pass."""
  width = max(32, 1 << (len(ids) - 1).bit_length())  # few shapes, so few compilations
  tokens = jnp.zeros((1, width), jnp.int32).at[0, : len(ids)].set(jnp.asarray(ids, jnp.int32))
  length = jnp.asarray([len(ids)], jnp.int32)
  return np.asarray(_logits(model.target, model.params, tokens, length), np.float32)


def margin(model: Model, ids: Sequence[int]) -> float:
  """The difference of the two largest logits after `ids`; tiny at a tie."""
  low, high = np.partition(logits(model, ids), -2)[-2:]
  return float(high - low)


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
