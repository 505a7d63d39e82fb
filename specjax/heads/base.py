"""The contract of draft heads: networks that are trained on a frozen target and draft for it.

A `Head` is what all heads have. Its kinds are types, a file each, which differ in how a guess
depends on those before; a head of one's own is one of them with its fields filled in:

    not at all              `parallel.Parallel`, `parallel.Frames`, which a CTC folds, and
                            `masked_block.MaskedBlock`, whose guesses attend to the text
    through a carry         `recurrent.Recurrent`, and `block_chain.BlockChain` after a block
                            and `target_rows.TargetRows`, which reads the target's cache
    by attention            `attending.Attending`, `attending.AttendingRoot`
    in the target's pass    `pseudo_rows.PseudoRows`

`drafting` fills trees with the guesses of any head, and unrolls it along texts to train.

Letters: B batch, T row length, M drafting positions of a row, D depth, E the target's width, E'
that of the states from which a head reads logits, W' draft vocabulary.
"""

import abc
import dataclasses
from typing import NamedTuple, Protocol

from jax import Array

from specjax.base import Drafter, Features, Params, StatesTarget
from specjax.heads import draft_vocabulary
from specjax.trees.base import Counts, Tree


class Examples(NamedTuple):
  """What a draft head learns from: texts, the frozen target's states, and where to draft.

  Attributes:
    tokens: i32[B, T].
    position: i32[B, T], from 0 within each text.
    segment: i32[B, T], number of the text in its row; -1 is padding.
    features: Features with arrays [B, T, E], the layers of `Head.hidden_layers`.
    at: i32[B, M], the positions from which the head drafts. `at` + d + 1 may lie past the text or
      even the row; logits there are not used, but must not be NaN.
  """

  tokens: Array
  position: Array
  segment: Array
  features: Features
  at: Array


class LossWeights:
  """What the terms of the loss weigh, by their names in `train.recipe.losses.TERMS`.

  The weight of "hard" is 1 and that of every other term 0 where it is not given. Depth d = 1..D
  weighs decay ** (d - 1). With `within` > 0, a depth learns only where the tokens of all depths
  before it are among that many best guesses there: later ones would never be reached. With
  `dpace`, alpha of D-PACE, each guess weighs its share of the expected length besides, see
  `train.recipe.losses.dpace`. With `units` > 0, a guess learns only where the target itself gives
  its token and all tokens from `at` + 1 on more than this probability: there they are one unit of
  lexical unit decoding (Sun et al. 2024, arXiv 2405.15208).
  """

  def __init__(
    self,
    *,
    decay: float = 0.8,
    within: int = 0,
    dpace: float | None = None,
    units: float = 0.0,
    **terms: float,
  ):
    self.terms, self.decay, self.within = {"hard": 1.0} | terms, decay, within
    self.dpace, self.units = dpace, units


class Weights(Protocol):
  """Makes the weights that are trained; `vocabulary` i32[W'] are the target ids of a reduced draft
  vocabulary, for heads with an LM head of their own."""

  def __call__(
    self, key: Array, target_params: Params, vocabulary: Array | None = None
  ) -> Params: ...


class Read(Protocol):
  """Logits f32[..., W'] of depth d = 1..D (static) from a state [..., E'].

  Heads that guess all depths at once are also asked with d = None: their first k depths, from
  [B, k, E'] -> [B, k, W']. `draft_vocabulary.through` reads by the target's LM head.
  """

  def __call__(
    self, params: Params, target_params: Params, state: Array, d: int | None
  ) -> Array: ...


class Feature(Protocol):
  """What of a state [..., E'] of depth d = 1..D (static) is like the target's: [..., E]."""

  def __call__(self, state: Array, d: int) -> Array: ...


class LogOdds(Protocol):
  """f32[...], from states [..., E']: log odds that a token drawn from the logits which the head
  reads there is accepted, given that those before it are."""

  def __call__(self, params: Params, state: Array) -> Array: ...


@dataclasses.dataclass(frozen=True)
class Head(abc.ABC):
  """A draft head, before its tree is chosen.

  Its builder, (target, config) -> one of the kinds, is cached: heads with the same functions are
  equal, and programs that were compiled for one serve the other.

  Attributes:
    name: of the method.
    target: the network it guesses for.
    depth: D, how far ahead it guesses (static).
    weights: makes the weights that are trained. The `params` of all other functions are
      {"params": these} and, for a reduced draft vocabulary, {"vocabulary": i32[W'] target ids}.
    read: turns a state into logits.
    loss: the published loss; by default cross-entropy with the text, as Medusa's.
    hidden_layers: layers of the target whose input the head reads, see `Features` (static).
    log_odds: None, or how sure the head is of its guesses; the loss term "confidence" trains it.
  """

  name: str
  target: StatesTarget
  depth: int
  weights: Weights
  read: Read
  loss: LossWeights = dataclasses.field(default=LossWeights(), kw_only=True)
  hidden_layers: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)
  log_odds: LogOdds | None = dataclasses.field(default=None, kw_only=True)

  def init(self, key: Array, target_params: Params, vocabulary: Array | None = None) -> Params:
    """Weights to begin with, for a draft vocabulary of target ids i32[W'], or the target's."""
    own = {"params": self.weights(key, target_params, vocabulary)}
    return own | draft_vocabulary.collection(vocabulary)

  @abc.abstractmethod
  def drafter(self, tree: Tree, counts: Counts | None = None) -> Drafter:
    """See `drafting.drafter`."""

  @abc.abstractmethod
  def unroll(self, params: Params, target_params: Params, examples: Examples) -> tuple[Array, ...]:
    """What the head reads along a true text: D states [B, M, E'].

    State d - 1 is read to guess depth d, the token at `at` + d + 1, given the true tokens before
    it; the token at `at` + 1 is the target's.
    """

  def feature(self, state: Array, d: int) -> Array:
    """What of a state [..., E'] of depth d = 1..D (static) is like the target's: [..., E]."""
    return state
