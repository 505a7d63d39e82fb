"""The contract of diffusion over tokens: what a denoiser, a cache, a policy and blocks are.

Letters: B batch, L canvas length, W window, the slots that are looked at in one round, N slots that
are read in a pass, V vocabulary, E model width, H query heads, K key/value heads, C head dimension.

One round of decoding, for a row whose block goes from slot lo = 2 up to hi = 6:

    canvas     the cat ___ ___ ___ ___ | ___ ___      ___ is masked, | ends the block
    evaluate   one pass of the denoiser; the window is the W slots from lo on
    prediction         sat  on  on  the               what would be committed,
                        .9  .8  .4  .3                and how probable it is
    select              x   x                         the policy commits two
    canvas     the cat sat  on ___ ___ | ___ ___      once no slot of it is masked, the next block

A policy that returns a set of slots commits these, and nothing that was committed is changed. Every
live row commits one slot per round or more: where the policy names none, the open slot of the best
score is. A policy that returns a `Change` may change its mind, for so many rounds of a block as its
`rounds` say; after these it, too, only commits. So every block ends.

A masked slot holds noise: the mask token where the denoiser's noise is absorbing, any token where
it is uniform, as it stands in the canvas until it is committed, replaced or drawn again.

This file imports nothing of the package.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

Params = Any  # a pytree of arrays
Parameter = Any  # an array [B], a value for every row; its default is a number, 0 or more
Probability = Annotated[Parameter, 0, 1]  # what a name may give it, least and most
Count = Annotated[Parameter, 1, 2**31 - 1]

# The loop holds what a policy returns to these, once, when it is traced: see `checks.array`.
PerRow = Int32[Array, " B"]
SlotTokens = Int32[Array, "B W"]
SlotNumbers = Float32[Array, "B W"]
SlotMask = Bool[Array, "B W"]
SlotLogits = Float32[Array, "B W V"]
Text = Int32[Array, "B L"]
TextMask = Bool[Array, "B L"]


class Canvas(NamedTuple):
  """Texts with holes.

  Attributes:
    tokens: i32[B, L]. Masked slots hold noise.
    masked: bool[B, L]. What is still to be filled.
    end: i32[B]. Slots from `end` on are not seen and not filled. Stopping rules only lower it.
    soft: [B, L, E], what the last pass said of each slot as an embedding, 0 where none has; () for
      a denoiser that does not read it.
    sure: f32[B, L], the confidence that each slot had when it was last in a window, 0 where none
      was; () for a cache that does not ask.
  """

  tokens: Text
  masked: TextMask
  end: PerRow
  soft: Any = ()
  sure: Any = ()

  @property
  def inside(self) -> Array:
    """bool[B, L]: the slots before `end`."""
    return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None] < self.end[:, None]


class Prediction(NamedTuple):
  """What the denoiser says of the window; entry w is slot `position` = lo + w of its row.

  A field that nobody reads costs nothing: the compiler leaves it out.

  Attributes:
    token: i32[B, W]. What would be committed: the argmax, or a draw; never the mask token.
    confidence: f32[B, W]. The probability of `token`.
    entropy: f32[B, W], nats.
    margin: f32[B, W]. The probability of the likeliest token less that of the second.
    log_probs: f32[B, W, V]. Log-probabilities, -inf for the mask token. These four are at
      temperature 1, or those that tokens are drawn from, see `draws.tempered`.
    position: i32[B, W].
    masked: bool[B, W]. The masked slots before the canvas's end.
    open: bool[B, W]. The masked slots of the block.
    block: bool[B, W]. The slots of the block, masked or not.
    step: i32[B]. Rounds spent in the block before this one.
    uniform: f32[B, W]. Noise from [0, 1) of this round.
    filled: bool[B, W]. The slots that earlier rounds committed; what was given is not among them.
    text: i32[B, L]. The tokens of the canvas before this round.
    likeliest: i32[B, W]. The argmax, whatever was drawn.
  """

  token: SlotTokens
  confidence: SlotNumbers
  entropy: SlotNumbers
  margin: SlotNumbers
  log_probs: SlotLogits
  position: SlotTokens
  masked: SlotMask
  open: SlotMask
  block: SlotMask
  step: PerRow
  uniform: SlotNumbers
  filled: SlotMask
  text: Text
  likeliest: SlotTokens


class Earlier(NamedTuple):
  """What earlier passes left of slots that are not read again.

  Attributes:
    kv: keys and values of the whole canvas, a pytree of arrays [B, any, L, any].
    visible: bool[B, L], which of them may be attended to; each of the N slots sees them all.
  """

  kv: Any
  visible: Array


class Pieces(NamedTuple):
  """A denoiser layer by layer, for caches that read other slots in one layer than in another.

  x [B, N, E] is the residual stream before layer i (static); nothing but `attention` mixes slots.

  Attributes:
    layers: how many layers there are (static).
    embed: (params, tokens i32[B, N]) -> x.
    project: (params, i, x, position i32[B, N]) -> (q [B, H, N, C], k [B, K, N, C], v).
    values: (params, i, x) -> v [B, K, N, C] alone.
    attention: (params, i, q, k [B, K, L, C], v, seen bool[B, L]) -> [B, N, E], what is added to x.
    mlp: (params, i, x after attention) -> [B, N, E], what is added to it.
    norm: (params, x) -> states.
  """

  layers: int
  embed: Callable[..., Array]
  project: Callable[..., tuple[Array, Array, Array]]
  values: Callable[..., Array]
  attention: Callable[..., Array]
  mlp: Callable[..., Array]
  norm: Callable[..., Array]


def same_params(params: Params, index: Array) -> Params:
  """`Denoiser.rows` of parameters that are the same for all rows."""
  return params


class Denoiser(NamedTuple):
  """A diffusion model as pure functions; `params` is a pytree that only they read.

  Attributes:
    vocab_size: V (static).
    mask: id of the mask token (static) of absorbing noise; None where noise is uniform, any token.
    shift: True where the state of slot i - 1 predicts slot i (Dream), False where its own state
      does (LLaDA).
    evaluate: (params, tokens i32[B, N], position i32[B, N], seen bool[B, N], Earlier or None) ->
      (states [B, N, E] after the final norm, kv of these N slots). `seen` says which of the N may
      be attended to; as bool[B, N, N], which each may attend to. With `soften` it takes the N
      slots' soft embeddings, too.
    head: (params, states [..., E]) -> logits f32[..., V].
    pieces: `evaluate` layer by layer, or None where it is no stack of layers.
    block: None where every slot sees every other. Else the denoiser is causal over blocks of so
      many slots (static): slot i sees slot j of the N where j // block <= i // block. The window
      then begins and ends with blocks that divide these.
    soften: (params, probabilities f32[B, N, V], step i32[B] as in `Prediction`) -> [B, N, E], soft
      embeddings; None where `evaluate` reads none (static).
    encode: (params, tokens i32[B, N], position i32[B, N], seen bool[B, N], Earlier or None) -> kv
      of these N slots, each of which sees those before it. `evaluate` then reads no slot before the
      block but as `Earlier`. None where `evaluate` gives all keys and values.
    length: how many slots its blocks have by default (static), None for no number of its own.
    masks_last: whether slots see in an order that has the filled ones first and the masked ones
      behind them: a filled slot sees the filled ones up to itself, a masked one all that are filled
      and the masked ones up to itself (static; WeDLM).
    rows: (params, index i32[M]) -> the params with which M rows of the B are evaluated; those of
      a network are the same for every row.
  """

  vocab_size: int
  mask: int | None
  shift: bool
  evaluate: Callable[..., tuple[Array, Any]]
  head: Callable[..., Array]
  pieces: Pieces | None = None
  block: int | None = None
  soften: Callable[..., Array] | None = None
  encode: Callable[..., Any] | None = None
  length: int | None = None
  rows: Callable[[Params, Array], Params] = same_params
  masks_last: bool = False


class CanvasCache(NamedTuple):
  """How the window's states are computed, and what of earlier passes is used again.

  Attributes:
    name: its key in `CACHES`.
    init: (params, canvas) -> cache, a fixed-shape pytree.
    states: (params, cache, canvas, lo i32[B], fresh bool[B]) -> ([B, W, E], cache): what predicts
      slots lo..lo + W - 1. `fresh` marks rows that begin a block.
    steady: whether a pass finds the same when passes between it and its block's first are left out.
    asks: whether it reads `Canvas.sure` (static).
  """

  name: str
  init: Callable[..., Any]
  states: Callable[..., tuple[Array, Any]]
  steady: bool = True
  asks: bool = False


class Transform(NamedTuple):
  """What happens to the window's logits before the prediction.

  Attributes:
    name: its key in `TRANSFORMS`.
    init: (B, W, V) -> memory, a fixed-shape pytree of arrays [B, ..], new for every block.
    apply: (params, memory, logits f32[B, W, V], masked bool[B, W], step i32[B]) -> (logits,
      memory). The mask token's logits are -inf. `step` counts the block's rounds before this one.
      One that remembers nothing changes each slot by itself, and may see some of the W at a time.
    parameters: class of `params`, a NamedTuple of `Parameter`s.
  """

  name: str
  init: Callable[..., Any]
  apply: Callable[..., tuple[Array, Any]]
  parameters: Callable[..., Params] = tuple


def at_least_one(commit: Array, score: Array, open_: Array) -> Array:
  """bool[B, W]: `commit`, and where it names no open slot, the one of the highest score f32[B, W].

  Of equal scores the one on the left wins, of -inf only too.
  """
  best = jnp.argmax(jnp.where(open_, score, -jnp.inf), 1)[:, None]
  # Where all scores are -inf, the first open slot is the best.
  best = jnp.where(jnp.take_along_axis(open_, best, 1), best, jnp.argmax(open_, 1)[:, None])
  none = ~(commit & open_).any(1, keepdims=True)
  return commit | (open_ & none & (jnp.arange(open_.shape[1])[None] == best))


class Change(NamedTuple):
  """What the slots of the window become; those that nothing names are kept.

  Only slots of the block can be replaced or drawn again, and none that was given. A field of None
  names nothing, at no cost. Of two fields that name a slot the first one counts.

  Attributes:
    commit: bool[B, W]. Masked slots that get their token, and are masked no more.
    replace: bool[B, W]. Slots that get their token and stay what they are, masked or committed.
    again: bool[B, W]. Slots that are drawn again: they get noise, and are masked from then on.
    stay: bool[B]. Rows that look at their block once more though no slot of it is masked.
  """

  commit: SlotMask
  replace: SlotMask | None = None
  again: SlotMask | None = None
  stay: Array | None = None


def commits(wanted: SlotMask | Change) -> Array:
  """bool[B, W], what a policy commits that changes nothing else; ValueError for a `Change`."""
  if isinstance(wanted, Change):
    raise ValueError("`policy` must only commit, to have this added to it, got one with a Change.")
  return wanted


def forget(new: Any, old: Any, by: Array) -> Any:
  """The memory of a policy that starts anew with every block, see `Policy.carry`."""
  return new


class Draws(NamedTuple):
  """Which noise draws the tokens of a round.

  Attributes:
    name: its key in `DRAWS`.
    key: (key[B] of the requests, round i32[B]) -> key[B], into which every slot folds its position.
  """

  name: str
  key: Callable[[Array, Array], Array]


class Policy(NamedTuple):
  """What slots become after a pass. Memory is a fixed-shape pytree of arrays [B, ..].

  Attributes:
    name: its key in `POLICIES`.
    init: (B, W, V) -> memory of a row of which nothing is known.
    select: (params, memory, prediction) -> (commit bool[B, W], score f32[B, W], memory), or with a
      `Change` in place of `commit`. Any slot that is `masked` may be committed, so that a policy
      can reach past its block. Where `commit` names no open slot, `at_least_one` adds the one of
      the highest score; of a `Change` from the round `rounds` of a block on.
    parameters: class of `params`, a NamedTuple of `Parameter`s.
    carry: (new, old, by i32[B]) -> the memory with which a block begins; `new` is that of `init`,
      `old` what the block before left, and the window has moved on by `by` slots.
    ahead: whether it has a use for slots past its block (static).
    said: (memory that `select` returned) -> i32[B, W], the tokens that are committed; None is
      `prediction.token`.
    blind: whether which slots it commits depends on no token and no probability (static).
    temperature: those at which it decodes (static); "zero" where it asks for likeliest tokens.
    rounds: (params, W) -> i32[B]: of a policy that returns a `Change`, the rounds of a block in
      which slots may be replaced and drawn again, and rows stay. A block thus ends after so many
      and W more. None for a policy that only commits.
  """

  name: str
  init: Callable[..., Any]
  select: Callable[..., tuple[SlotMask | Change, SlotNumbers, Any]]
  parameters: Callable[..., Params] = tuple
  carry: Callable[..., Any] = forget
  ahead: bool = False
  said: Callable[[Any], Array] | None = None
  blind: bool = False
  temperature: Literal["any", "zero"] = "any"
  rounds: Callable[[Params, int], Array] | None = None


class Blocks(NamedTuple):
  """How long a block is.

  Attributes:
    name: its key in `BLOCKS`.
    window: W, the longest block (static).
    size: (params, prediction) -> i32[B], 1..W; asked in a block's first round, where
      `prediction.open` holds all masked slots of the window.
    parameters: class of `params`, a NamedTuple of `Parameter`s.
    length: what `size` gives, where it is always the same (static).
    slides: whether every round begins a block, with the first masked slot (static).
  """

  name: str
  window: int
  size: Callable[..., Array]
  parameters: Callable[..., Params] = tuple
  length: int | None = None
  slides: bool = False


class Stopping(NamedTuple):
  """Where a text ends before its canvas does.

  Attributes:
    name: its key in `STOPPING`.
    end: (params, canvas, prediction, commit bool[B, W], full bool[B]) -> the canvas, with an
      earlier end or with slots after the text filled; the argument holds what was committed.
      `full` marks rows whose block has no masked slot left; `params` i32[M] are the end tokens.
    fills: whether it fills slots behind the block (static), for which the whole canvas is there.
  """

  name: str
  end: Callable[..., Canvas]
  fills: bool = False
