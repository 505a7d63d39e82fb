"""Duo-LLM: each token takes in each layer the big MLP, a small one beside it, or none.

Letters: B batch, N nodes, E width, M width of a small MLP, L layers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from specjax.base import Params
from specjax.models.layers import TransformerBlock
from specjax.models.linear import linear
from specjax.models.skipping.base import MLP, Skipping, whole

DUO = "duo"  # a model's weights have them there by layer, as dicts for Flax
NONE, SMALL, BIG = range(3)


class Beside(NamedTuple):
  """What stands beside the MLP of a layer.

  Attributes:
    router: f32[3, E], of NONE, SMALL and BIG in this order.
    bias: f32[3].
    small_gate_up: [2 M, E].
    small_down: [E, M].
  """

  router: Array
  bias: Array
  small_gate_up: Array
  small_down: Array


def beside(params: Params, layer: int) -> Beside:
  """That of a layer."""
  return Beside(**params[DUO][f"layer_{layer}"])


def normed(params: Params, layer: int, block: TransformerBlock, x: Array) -> Array:
  """What the big MLP reads of x [B, N, E], [B, N, E]: router and small MLP read it too."""
  own = {"params": params["params"][f"layer_{layer}"]}
  y: Any = block.apply(own, x, method=lambda block, x: block.mlp_input(x))
  return y


def scores(own: Beside, h: Array) -> Array:
  """The log-probabilities f32[B, N, 3] of the router for h [B, N, E]."""
  logits = jnp.einsum("bne,ce->bnc", h.astype(jnp.float32), own.router) + own.bias[None, None]
  return jax.nn.log_softmax(logits)


def small(own: Beside, h: Array) -> Array:
  """The small MLP, h [B, N, E] -> [B, N, E]."""
  gate, up = jnp.split(linear(h, own.small_gate_up.astype(h.dtype)), 2, -1)
  return linear(nn.silu(gate) * up, own.small_down.astype(h.dtype))


def read(own: Beside, block: TransformerBlock) -> Array:
  """f32[3], the share of the big MLP's parameters that NONE, SMALL and BIG read."""
  return jnp.array([0, own.small_down.shape[1] / block.config.mlp_width, 1], jnp.float32)


def in_all_layers(layers: int, mlp: MLP) -> Skipping:
  """All of L layers read each token, with a choice of MLPs, see `Skipping.mlp`."""

  def start(params, inputs, length: Array) -> Array:
    return length

  def runs(prompt: Array, position: Array) -> Array:
    return jnp.ones((*position.shape, layers), bool)

  return Skipping(DUO, start, runs, mlp=mlp)


@functools.cache
def duo(layers: int, price: float = 0.0) -> Skipping:
  """LOSSY: in each layer a router gives a token the big MLP, a small one or none.

  Duo-LLM, Alizadeh et al. 2024, arXiv 2410.10846. A router is a linear map of the stream after
  attention, which runs for every token. A token takes the module of the highest log-probability
  less `price` times the share of the big MLP's parameters that the module reads (`price` is not of
  the paper). Small MLPs and routers are trained beside a frozen model, see `train.duo`.

  It was measured at 51 % of the MLPs' parameters, for 0.11 nats.

  Measured: 1.30x the speed (skipping)
  Train: python -m specjax.train.duo --model gsm8k-7m --data questions.jsonl --out runs/duo

  Args:
    layers: L, of the model.
    price: nats for a whole MLP, 0 or more; the higher, the fewer parameters are read.

  Raises:
    ValueError: a price below 0.
  """
  if not price >= 0:
    raise ValueError(f"`price` must be at least 0, got {price}.")

  def mlp(params: Params, layer: int, block: TransformerBlock, x: Array) -> tuple[Array, Array]:
    own, h = beside(params, layer), normed(params, layer, block, x)
    cost = read(own, block)
    choice = jnp.argmax(scores(own, h) - price * cost[None, None], -1)

    def of(number: int, module: Callable[[Array], Array]) -> Array:
      """What a module adds where it is chosen, [B, N, E]; it costs nothing where none wants it."""
      mine = choice == number
      return lax.cond(
        mine.any(), lambda x: jnp.where(mine[..., None], module(x), 0), jnp.zeros_like, x
      )

    big = of(BIG, lambda x: whole(params, layer, block, x)[0])
    return big + of(SMALL, lambda _: small(own, h)), cost[choice]

  return in_all_layers(layers, mlp)
