"""What chooses the layers that read a token, so that each way is a file of its own.

A prompt is read by all layers. A later token is read by some, and a layer that reads it reads all
text before it: no token may be read by a layer that left out an earlier one of the answer. Then no
key or value is ever missing.

Letters: B batch, T prompt length, N nodes, L layers, E width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from specjax.base import Params


class Skipping(NamedTuple):
  """A choice of layers, by the prompt and the position alone.

  So what is said after a text does not depend on how it was drafted, and every drafter and rule is
  exact for it.

  Attributes:
    name: as it is typed.
    start: (params, inputs [B, T, E] of the L layers at the prompt or (), length i32[B]) -> the
      state after a prompt, a pytree of arrays that begin with B.
    runs: (state, position i32[B, N], absolute) -> bool[B, N, L], whether a layer reads a token.
    reads: whether `start` is given the layers' inputs (static).
  """

  name: str
  start: Callable[[Params, tuple[Array, ...], Array], Any]
  runs: Callable[[Any, Array], Array]
  reads: bool = False
