"""Heads whose layer over guesses takes in the root, too.

Letters: B batch, M roots, E' width of what a head reads out, G newest tokens of a text.
"""

import dataclasses
from typing import ClassVar, Protocol

import jax.numpy as jnp
from jax import Array

from specjax.base import Params
from specjax.heads.attending import Attending
from specjax.trees.structure import at


class AtRoot(Protocol):
  """The states [B, M, E'] before the root, from what `memory` keeps, last [B, M, any].

  `newest` i32[B, M, G] are the text's tokens up to the root, which is the last of them; a text that
  is shorter begins with its first token again.
  """

  def __call__(
    self, params: Params, target_params: Params, last: Array, newest: Array
  ) -> Array: ...


@dataclasses.dataclass(frozen=True)
class AttendingRoot(Attending):
  """An `Attending` head whose `attend` gives depth 1, too, from the root; `chimera.py` is one.

  Attributes:
    at_root: see `AtRoot`.
    newest: G, how many tokens up to the root `at_root` is given (static).
  """

  at_root: AtRoot
  newest: int

  first: ClassVar[int] = 0

  def root(self, params, target_params, last, tokens, place, number):
    back = jnp.arange(self.newest - 1, -1, -1, dtype=jnp.int32)
    place = place[..., None] - jnp.minimum(back[None, None], number[..., None])
    newest = at(tokens, place.reshape(len(tokens), -1)).reshape(place.shape)
    return self.at_root(params, target_params, last, newest)
