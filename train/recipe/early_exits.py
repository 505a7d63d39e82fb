"""A loss for models that can stop early: layers are dropped, and every exit predicts.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710). With `every` = 1 all exits are trained in each
step, as S2D's sorted exits are (Kavehzadeh et al. 2024, arXiv 2407.01955).

Letters: B rows, T tokens of a row, L layers, E width.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax.base import Params
from specjax.data.packing import PackedRows
from specjax.models.layers import of_layer
from specjax.models.rotary import angles_of_layers
from specjax.models.transformer import Transformer, attention_mask
from specjax.train.recipe import losses
from specjax.train.recipe.config import Amount, Count, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExits:
  """What makes a model's first layers predict by themselves.

  Attributes:
    layer_dropout: how often the last layer is dropped from a row; the first one never is, and those
      between more often the deeper they lie.
    exit_loss: scale of the losses of the exits behind the layers below the last; 0 trains none.
    exit_every: every so many exits are trained in a step, beginning with a random one.
  """

  layer_dropout: Share = 0.0
  exit_loss: Amount = 0.0
  exit_every: Count = 1


def dropout(layers: int, most: float) -> np.ndarray:
  """f[L], how often each layer is dropped: `most` times 2^(l / (L - 1)) - 1."""
  return most * (2.0 ** (np.arange(layers) / max(layers - 1, 1)) - 1)


def weights(layers: int, scale: float) -> np.ndarray:
  """f[L], what the loss behind each layer weighs, before those that are trained are normalised."""
  deep = np.arange(layers)
  below = scale * deep * (deep + 1) / 2
  below[-1] = layers - 1 + scale * (layers - 2) * (layers - 1) / 2
  return below


def streams(network: Transformer, params: Params, rows: PackedRows, dropped: Array) -> Array:
  """[L, B, T, E], the residual stream behind each layer; dropped bool[L, B] leave it as it was."""
  config = network.config
  mask = attention_mask(jnp.asarray(rows.segment), config.causal)
  position = jnp.asarray(rows.position)
  distance = position[:, :, None] - position[:, None, :]
  x, angle = (
    jnp.asarray(network.apply(params, rows.tokens, method="embed")),
    angles_of_layers(config, position),
  )
  behind = []
  for i in range(config.layers):
    own = {"params": params["params"][f"layer_{i}"]}
    layer = of_layer(config, i)
    window = layer.config.window
    seen = mask if window is None else mask & (distance < window)
    after = jnp.asarray(layer.apply(own, x, angle[i], seen, None)[0])
    x = jnp.where(dropped[i][:, None, None], x, after)
    behind.append(x)
  return jnp.stack(behind)


class Drawn(NamedTuple):
  """What is drawn for a step: the layers that are dropped from each row bool[B, L], and the first
  exit that is trained i32[B], the same in all rows."""

  dropped: Array
  start: Array


def draw(key: Array, layers: int, rows: int, options: EarlyExits) -> Drawn:
  """Draws for a batch of rows."""
  drop, rotate = jax.random.split(key)
  chance = jnp.asarray(dropout(layers, options.layer_dropout), jnp.float32)
  dropped = jax.random.uniform(drop, (layers, rows)) < chance[:, None]
  start = jax.random.randint(rotate, (), 0, options.exit_every)
  return Drawn(dropped.T, jnp.broadcast_to(start, rows))


def loss_fn(
  params: Params, network: Transformer, rows: PackedRows, key: Array, options: EarlyExits
) -> tuple[Array, dict[str, Array]]:
  """`loss_of` a batch, with what is drawn for it."""
  drawn = draw(key, network.config.layers, len(rows.tokens), options)
  return loss_of(params, network, rows, drawn, options)


def loss_of(
  params: Params, network: Transformer, rows: PackedRows, drawn: Drawn, options: EarlyExits
) -> tuple[Array, dict[str, Array]]:
  """The weighted cross-entropy of the exits, in nats over the trained tokens, and the last one's.

  `accuracy` is the share that the whole network guesses right, `first` the loss of the shallowest
  exit of the step.
  """
  L, every = network.config.layers, options.exit_every
  behind = streams(network, params, rows, drawn.dropped.T)
  scale = jnp.asarray(weights(L, options.exit_loss), jnp.float32)
  labels = jnp.asarray(rows.tokens)[:, 1:]
  mask = jnp.asarray(rows.mask[:, 1:]).astype(jnp.float32)

  def read(x: Array) -> tuple[Array, Array]:
    hidden = network.apply(params, x[:, :-1], method="final_norm")
    logits = jnp.asarray(network.apply(params, hidden, method="head"))
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (logits.argmax(-1) == labels).astype(jnp.float32)
    return losses.mean(nll, mask), losses.mean(right, mask)

  last, accuracy = read(behind[-1])
  total, weight, first = scale[-1] * last, scale[-1], last
  start = drawn.start[0]
  for j in reversed(range(-(-(L - 1) // every) if options.exit_loss else 0)):
    layer = start + j * every
    there = (layer < L - 1).astype(jnp.float32)
    # An exit past the last but one weighs nothing.
    loss, _ = jax.checkpoint(read)(behind[jnp.minimum(layer, L - 2)])
    own = there * scale[jnp.minimum(layer, L - 2)]
    total, weight = total + own * loss, weight + own
    first = jnp.where(there > 0, loss, first)
  return total / weight, {"last": last, "first": first, "accuracy": accuracy}
