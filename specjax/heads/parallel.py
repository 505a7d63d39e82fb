"""Heads that guess all depths at once, from what is kept of the committed text: tokens, or frames.

Letters: B batch, M roots, D depth, E' width of what a head reads out.
"""

import dataclasses
from typing import Protocol

from jax import Array

from specjax.base import Params
from specjax.heads import draft_vocabulary, prefix
from specjax.heads.own_pass import OwnPass
from specjax.trees.base import independent
from specjax.trees.folded import Folded


class States(Protocol):
  """The states [B, M, D, E'] of all depths, from what `memory` keeps, last [B, M, any]."""

  def __call__(self, params: Params, target_params: Params, last: Array) -> Array: ...


@dataclasses.dataclass(frozen=True)
class Parallel(OwnPass):
  """A head whose guesses do not depend on each other; `medusa.py` is one.

  To write one is to write `weights`, `read`, which is also asked with d = None, and

  Attributes:
    states: see `States`. It is called once per round with M = 1, and in training along texts.
  """

  states: States

  def begin(self, params, target_params, state, context, depth):
    states = self.states(params, target_params, prefix.last(state)[:, None])
    logits = self.read(params, target_params, states[:, 0, :depth], None)
    return independent(logits), (), ()

  def unroll(self, params, target_params, examples):
    last, *_ = self.roots(params, target_params, examples)
    states = self.states(params, target_params, last)
    return tuple(states[:, :, d] for d in range(self.depth))


@dataclasses.dataclass(frozen=True)
class Frames(Parallel):
  """A `Parallel` head of D frames; `ctc.py` is one.

  The last of the W' + 1 logits that `read` gives says nothing. All depths are trained together, and
  `trees.folded` folds the drafts, so that many hold fewer tokens than the tree has nodes.
  """

  def ids(self, params):
    return draft_vocabulary.with_blank(super().ids(params), self.target.vocab_size)

  def drafter(self, tree, counts=None):
    return super().drafter(Folded(tree), counts)._replace(varies=True)
