"""The contract of draft heads: networks that are trained on a frozen target and draft for it.

A head says what it keeps of the committed text and how one guess follows from another.
`drafters.drafting` fills trees with the guesses of any head, and unrolls it along texts to train.

Letters: B batch, T row length, M drafting positions of a row, W nodes of one level, D depth, E the
target's width, E' that of the states from which a head reads logits, W' draft vocabulary, G newest
tokens of a text.
"""

from typing import Any, NamedTuple, Protocol

from jax import Array

from specjax.base import KV, Cache, Features, Params, Target


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
  before it are among that many best guesses there: later ones would never be reached.
  """

  def __init__(self, *, decay: float = 0.8, within: int = 0, **terms: float):
    self.terms, self.decay, self.within = {"hard": 1.0} | terms, decay, within


class Init(Protocol):
  """Makes the weights: {"params": those that are trained} and, for a reduced draft vocabulary
  i32[W'] of target ids, {"vocabulary": these ids}."""

  def __call__(
    self, key: Array, target_params: Params, vocabulary: Array | None = None
  ) -> Params: ...


class Read(Protocol):
  """Logits f32[..., W'] of depth d = 1..D (static) from a state [..., E'].

  A head without `step` is also asked with d = None: its first k depths at once, from
  [B, k, E'] -> [B, k, W'].
  """

  def __call__(
    self, params: Params, target_params: Params, state: Array, d: int | None
  ) -> Array: ...


class TextLayers(Protocol):
  """The head's own layers over committed text: features [B, N, E] of tokens, and the tokens that
  follow them -> (output [B, N, any], KV). For the rest see `models.layers.Layers`."""

  def __call__(
    self, params: Params, target_params: Params, features: Features, following: Array,
    position: Array, mask: Array, cache: Cache | None = None,
  ) -> tuple[Array, KV]: ...  # fmt: skip


class First(Protocol):
  """The carry at the root, arrays [B, M, ...], from what `Head.memory` keeps, last [B, M, any].

  `newest` i32[B, M, G] are the text's tokens up to the root, which is the last of them; a text that
  is shorter begins with its first token again.
  """

  def __call__(self, params: Params, target_params: Params, last: Array, newest: Array) -> Any: ...


class Step(Protocol):
  """Takes in the token at depth d - 1 (the root for d = 1): carry and tokens i32[B, W] ->
  (the state [B, W, E'] that is read at depth d = 1..D (static), carry)."""

  def __call__(
    self, params: Params, target_params: Params, carry: Any, tokens: Array, d: int
  ) -> tuple[Array, Any]: ...


class Attend(Protocol):
  """A layer over guesses: states [B, W, E'] and the tokens i32[B, W] after them -> (the states read
  at the next depth, KV). `earlier` holds the rows of guesses above, which `mask` has first.

  `position` i32[B, W] is that of the token before these tokens.
  """

  def __call__(
    self, params: Params, target_params: Params, state: Array, following: Array, position: Array,
    mask: Array, cache: Cache | None = None, earlier: KV | None = None,
  ) -> tuple[Array, KV]: ...  # fmt: skip


class Block(Protocol):
  """All guesses after M roots at once: states [B, M, D, E'].

  Args:
    last: [B, M, any], what `Head.memory` keeps there.
    position: i32[B, M], that of the newest row of text which a root sees.
    sees: bool[B, M, S], which of the `earlier` rows a root sees; None while drafting, where the
      text is in the `cache`.
  """

  def __call__(
    self, params: Params, target_params: Params, last: Array, position: Array,
    sees: Array | None = None, cache: Cache | None = None, earlier: KV | None = None,
  ) -> Array: ...  # fmt: skip


class Enter(Protocol):
  """Pseudo rows k = 1..D (static) as they enter, [B, G, E], from the stream [B, G, E] of their G
  nodes; a node comes once for each of its sets, one after the other."""

  def __call__(self, params: Params, k: int, stream: Array) -> Array: ...


class OfPass(Protocol):
  """The target's weights for a pass over `nodes` (static) nodes and the pseudo rows behind them.

  They may differ from `target_params` for the rows, and for the nodes they must not; see
  `models.lora.gate`.
  """

  def __call__(self, params: Params, target_params: Params, nodes: int) -> Params: ...


class Pseudo(NamedTuple):
  """Guesses that are rows of the target's own pass; see `drafters.pseudo`.

  Attributes:
    layers: D layers of the target; row k enters before layers[k - 1] (static).
    enter: see `Enter`.
    causal: whether a row sees no later rows of its node, or all of them (static).
    of_pass: see `OfPass`.
    sets: of rows that a node has, which do not see each other; a guess is the mean of their states,
      and so of the logits that are linear in them (static).
  """

  layers: tuple[int, ...]
  enter: Enter
  causal: bool = True
  of_pass: OfPass = lambda params, target_params, nodes: target_params
  sets: int = 1


class Feature(Protocol):
  """What of a state [..., E'] of depth d = 1..D (static) is like the target's state: [..., E]."""

  def __call__(self, state: Array, d: int) -> Array: ...


class Head(NamedTuple):
  """A draft head, before its tree is chosen. Heads differ in how a guess depends on those before:

    not at all              `first` gives the states [B, M, D, E'] of all depths, or `block`,
                            which attends to the text
    through a carry         `step` takes in one token after the other
    by attention            `attend` sees the rows of guesses above; `memory` gives depth 1, or with
                            `attends_root` the root is the first of these rows
    in the target's pass    `pseudo` rows are guessed while the target verifies

  Attributes:
    name: of the method.
    target: the network it guesses for.
    depth: D, how far ahead it guesses (static).
    loss: the published loss.
    init: makes the weights, `params` of all that follow.
    read: turns a state into logits.
    memory: layers over the committed text, whose cache and newest output are kept; None keeps the
      target's newest state [B, E] after its final norm.
    first: makes the carry at the root of what is kept, by default the same.
    newest: G, how many tokens up to the root `first` is given (static).
    block, step, attend, pseudo: one of them is given at most.
    attends_root: whether `attend` takes in the root, too, and gives depth 1 (static).
    hidden_layers: layers of the target whose input `memory` reads, see `Features` (static).
    feature: what the loss term of that name compares; the whole state by default.
    window: how many of the last positions the layers see, more than D, or None for all (static);
      rows of the text are masked by it, and guesses are always inside.
    blank: whether guesses are frames of CTC, of which `depth` counts (static): the last of W' + 1
      logits says nothing, all depths are trained together, and `trees.folded` folds the drafts.
  """

  name: str
  target: Target
  depth: int
  loss: LossWeights
  init: Init
  read: Read
  memory: TextLayers | None = None
  first: First = lambda params, target_params, last, newest: last
  newest: int = 1
  block: Block | None = None
  step: Step | None = None
  attend: Attend | None = None
  attends_root: bool = False
  pseudo: Pseudo | None = None
  hidden_layers: tuple[int, ...] = ()
  feature: Feature = lambda state, d: state
  window: int | None = None
  blank: bool = False
