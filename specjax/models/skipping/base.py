"""What chooses the layers that read a token, so that each way is a file of its own.

A prompt is read by all layers. A later token is read by some, and a layer that reads it reads all
text before it: no token may be read by a layer that left out an earlier one of the answer. Then no
key or value is ever missing. MLPs have neither, so each token may have its own choice of them.

Letters: B batch, T prompt length, N nodes, L layers, E width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.models.layers import TransformerBlock

MLP = Callable[[Params, int, TransformerBlock, Array], tuple[Array, Array]]


def whole(params: Params, layer: int, block: TransformerBlock, x: Array) -> tuple[Array, Array]:
  """A layer's own MLP for x [B, N, E] after its attention; see `Skipping.mlp`."""
  own = {"params": params["params"][f"layer_{layer}"]}
  added: Any = block.apply(own, x, method="mlp")
  return added, jnp.ones(x.shape[:2], jnp.float32)


class Skipping(NamedTuple):
  """A choice of layers by the prompt and the position alone, and of MLPs by a token's own stream.

  So what is said after a text does not depend on how it was drafted, and every drafter and verifier
  is exact for it.

  Attributes:
    name: as it is typed.
    start: (params, inputs [B, T, E] of the L layers at the prompt or (), length i32[B]) -> the
      state after a prompt, a pytree of arrays that begin with B.
    runs: (state, position i32[B, N], absolute) -> bool[B, N, L], whether a layer reads a token.
    reads: whether `start` is given the layers' inputs (static).
    mlp: (params, layer, block, x [B, N, E] after its attention) -> (what is added to x [B, N, E];
      the share f32[B, N] of the parameters of the layer's MLP that was read for it), where the
      layer reads a token. Row by row: what is added to one does not depend on others.
  """

  name: str
  start: Callable[[Params, tuple[Array, ...], Array], Any]
  runs: Callable[[Any, Array], Array]
  reads: bool = False
  mlp: MLP = whole
