"""Heads with a layer over their guesses, which sees the committed text and the guesses above.

Letters: B batch, M roots, W nodes of one level or roots, D depth, E' width of what a head reads, G
newest tokens of a text.
"""

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from specjax import checks
from specjax.base import KV, Cache, Params
from specjax.heads import prefix
from specjax.heads.base import Feature
from specjax.heads.own_pass import OwnPass, token_at
from specjax.heads.prefix import RunText
from specjax.trees.structure import gather


class Attend(Protocol):
  """A layer over guesses: states [B, W, E'] and the tokens i32[B, W] after them -> (the states read
  at the next depth, KV). `earlier` holds the rows of guesses above, which `mask` has first.

  `position` i32[B, W] is that of the token before these tokens.
  """

  def __call__(
    self,
    params: Params,
    target_params: Params,
    state: Array,
    following: Array,
    position: Array,
    mask: Array,
    cache: Cache | None = None,
    earlier: KV | None = None,
  ) -> tuple[Array, KV]: ...


@dataclasses.dataclass(frozen=True)
class Attending(OwnPass):
  """A head that goes on from its own states by attention; `eagle.py` is one.

  To write one is to write `weights`, `read`, layers over the text, and the same layers over
  guesses. In training it sees the text up to `at`, then its own states: EAGLE-3's training-time
  test.

  Attributes:
    memory: the layers over the text, whose newest output is the state of depth 1.
    attend: see `Attend`. A tree calls it once per level below the root, training once per depth
      with the rows of the text as `earlier`.
    window: how many of the last positions the layers see, more than D, or None for all (static);
      rows of the text are masked by it, and guesses are always inside.
    feature: what the loss term of that name compares; the whole state by default.
  """

  memory: RunText = dataclasses.field(kw_only=True)
  attend: Attend
  window: int | None = dataclasses.field(default=None, kw_only=True)
  feature: Feature = dataclasses.field(default=lambda state, d: state, kw_only=True)

  first: ClassVar[int] = 1  # the level of the first tokens that `attend` takes in

  def __post_init__(self) -> None:
    if self.window is not None:
      checks.whole("window", self.window, self.depth + 1, note="more than the depth")

  def root(
    self,
    params: Params,
    target_params: Params,
    last: Array,
    tokens: Array,
    place: Array,
    number: Array,
  ) -> Array:
    """The states [B, M, E'] from which the head goes on, of what `memory` keeps, last [B, M, any].

    `place` i32[B, M] is where the roots are in the tokens i32[B, S], `number` i32[B, M] that of
    each in its text, from 0.
    """
    return last

  def at(self, level: int) -> Attend:
    """What attends from the nodes of a level, 0 the root's (static)."""
    return self.attend

  def begin(self, params, target_params, state, context, depth):
    last, first = prefix.last(state)[:, None], self.first
    place = context.length[:, None] - 1

    def step(level, tokens, carry, rows, mask):
      if level >= first:
        # A root's row of `memory` is the newest of the cache, so `mask` loses its column.
        position = jnp.broadcast_to(state.cache.length[:, None] + level - 1, tokens.shape)
        carry, fresh = self.at(level)(
          params, target_params, carry, tokens, position, mask[:, :, first:], state.cache, rows
        )
        rows = _join(rows, fresh, 2)
      return self.read(params, target_params, carry, level + 1), carry, rows

    return step, self.root(params, target_params, last, context.tokens, place, place), None

  def unroll(self, params, target_params, examples):
    last, position, sees, text = self.roots(params, target_params, examples)
    place = jnp.minimum(examples.at + 1, examples.tokens.shape[1] - 1)
    state = self.root(params, target_params, last, examples.tokens, place, position + 1)
    states = [state][: self.first]
    rows, chain = None, None  # what each drafting position has guessed, which no other sees
    for d in range(len(states) + 1, self.depth + 1):
      where, near = position + d - 1, sees
      if self.window is not None:
        near = sees & (where[:, :, None] - examples.position[:, None] < self.window)
      state, fresh = self.at(d - 1)(
        params, target_params, state, token_at(examples, d), where, near, chain, text
      )
      states.append(state)
      rows = _join(rows, jax.tree.map(lambda x: x[:, :, :, None], fresh), 3)
      chain = Cache(rows, jnp.full(examples.at.shape[0], rows.k[0].shape[3], jnp.int32))
    return tuple(states)


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
    newest = gather(tokens, place.reshape(len(tokens), -1)).reshape(place.shape)
    return self.at_root(params, target_params, last, newest)


def _join(rows: KV | None, fresh: KV, axis: int) -> KV:
  """The rows of both, one after the other."""
  if rows is None:
    return fresh
  return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis), rows, fresh)
