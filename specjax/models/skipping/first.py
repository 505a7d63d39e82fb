"""FiRST: a router at each layer decides by the prompt whether the layer reads the answer.

Letters: B batch, T prompt length, L layers, E width.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.models.skipping.base import Skipping

ROUTERS = "routers"  # a model's weights have them there, as a dict for Flax


class Routers(NamedTuple):
  """w: f32[L, E]; b: f32[L]."""

  w: Array
  b: Array


def probability(routers: Routers, layer: int, x: Array, prompt: Array) -> Array:
  """f32[B], that a layer reads the answer: the mean of its router's over the rows of the prompt.

  Args:
    x: [B, T, E], the layer's input.
    prompt: bool[B, T], which rows are the prompt's; one at least in each row of the batch.
  """
  score = jnp.einsum("bte,e->bt", x.astype(jnp.float32), routers.w[layer])
  each = jax.nn.sigmoid(score + routers.b[layer])
  return jnp.where(prompt, each, 0).sum(1) / prompt.sum(1).astype(jnp.float32)


@functools.cache
def first(layers: int, threshold: float = 0.5) -> Skipping:
  """LOSSY: each layer reads an answer or not, as its router decides by the prompt.

  FiRST, Jain et al. 2024, arXiv 2410.12513. A router is a linear map of the layer's input; a layer
  runs where the mean of its probabilities over the prompt, all but the last token, is `threshold`
  or more. The decision holds for the whole answer, so that no key or value is missing. Routers are
  trained together with low-rank updates of the model, see `train.skipping`.

  It was measured at 3.7 of 8 layers, after 200 steps of training, for 0.97 nats.

  Measured: 1.60x the speed (skipping)
  Train: python -m specjax.train.skipping --model gsm8k-7m --data questions.jsonl --out runs/first

  Args:
    layers: L, of the model.
    threshold: 0 to 1.

  Raises:
    ValueError: a threshold outside 0 to 1.
  """
  if not 0 <= threshold <= 1:
    raise ValueError(f"`threshold` must be between 0 and 1, got {threshold}.")

  def start(params: Params, inputs: tuple[Array, ...], length: Array) -> Array:
    place = jnp.arange(inputs[0].shape[1], dtype=jnp.int32)[None]
    prompt = place < jnp.maximum(length - 1, 1)[:, None]
    every = [probability(Routers(**params[ROUTERS]), i, x, prompt) for i, x in enumerate(inputs)]
    return jnp.stack(every, 1) >= threshold

  def runs(kept: Array, position: Array) -> Array:
    return jnp.broadcast_to(kept[:, None], (*position.shape, layers))

  return Skipping("first", start, runs, reads=True)
