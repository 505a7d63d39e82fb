"""Heads that fill a block of masks after the root in one pass over the committed text.

Letters: B batch, M roots, D depth, E' width of what a head reads out.
"""

import dataclasses
from typing import Protocol

from jax import Array

from specjax.base import KV, Cache, Params
from specjax.heads import prefix
from specjax.heads.base import Examples
from specjax.heads.blocks import Seen
from specjax.heads.own_pass import OwnPass
from specjax.heads.prefix import RunText
from specjax.trees.base import independent


class Block(Protocol):
  """All guesses after M roots at once: states [B, M, D, E'].

  Args:
    last: [B, M, any], what `memory` keeps there.
    position: i32[B, M], that of the newest row of text which a root sees.
    sees: which of the `earlier` rows a root sees, for `blocks.laid_out`; None while drafting, where
      the text is in the `cache`.
  """

  def __call__(
    self,
    params: Params,
    target_params: Params,
    last: Array,
    position: Array,
    sees: Seen | None = None,
    cache: Cache | None = None,
    earlier: KV | None = None,
  ) -> Array: ...


@dataclasses.dataclass(frozen=True)
class MaskedBlock(OwnPass):
  """A head whose guesses attend to the text but do not see each other's tokens; `pard.py` is one.

  To write one is to write `weights`, `read`, which is also asked with d = None, layers over the
  text, and the same layers over masks, whose rows `blocks.laid_out` places.

  Attributes:
    memory: the layers over the text.
    block: see `Block`. It is called once per round with M = 1, and in training along texts.
  """

  memory: RunText = dataclasses.field(kw_only=True)
  block: Block

  def begin(self, params, target_params, state, context, depth):
    last, row = prefix.last(state)[:, None], state.cache.length[:, None] - 1
    states = self.block(params, target_params, last, row, cache=state.cache)
    logits = self.read(params, target_params, states[:, 0, :depth], None)
    return independent(logits), (), ()

  def unroll(self, params, target_params, examples):
    states = self.states(params, target_params, examples)
    return tuple(states[:, :, d] for d in range(self.depth))

  def states(self, params: Params, target_params: Params, examples: Examples) -> Array:
    """What the blocks say along a true text, [B, M, D, E']."""
    last, position, sees, text = self.roots(params, target_params, examples)
    seen = Seen(sees, examples.position)
    return self.block(params, target_params, last, position, seen, earlier=text)
