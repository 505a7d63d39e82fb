"""The contract: what a target, a drafter and a verifier are, and the arrays they exchange.

Letters: B batch, N tree nodes (node 0 is the root), D maximum draft depth, A = D + 1 rows of an
accepted path, S cache length, L layers, V vocabulary, E model width, K key/value heads, C head
dimension, T prompt length.

One round of decoding, for a row whose committed text is "the cat sat" (n = 3 tokens):

    committed   the cat sat            cache holds n - 1 = 2 rows: the, cat
    root                sat            node 0: the newest token, committed but not cached
    draft               sat            nodes   0 sat   1 on   2 down   3 the   4 a
                        +-- on                 parent  0      0        1       1   of node
                        |   +-- the            depth   0 1    1        2       2
                        |   +-- a
                        +-- down
    evaluate    one target pass over the five nodes gives the distribution after each of them
    verify      the target follows `on` and `the`, then says `mat`:
                path = [0, 1, 3], count = 2, tokens = [on, the, mat]
    commit      the cache gains the rows of path: sat, on, the. Committed: n = 6, root = mat.

Of the package this file imports `sampling` alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Int32

from specjax.sampling import NoiseSource, Settings

Params = Any  # a pytree of arrays
Proposal = Literal[
  "deterministic", "chain", "iid", "without_replacement", "mixed", "independent", "truncated",
  "coupled",
]  # fmt: skip
"""How a drafter's tokens came about, which decides what a verifier may assume.

"deterministic": a fixed rule (top-k, lookup) chose them; there is no distribution q to correct for.
"chain": one token per depth was drawn, from the distribution in `Draft.log_probs`.
"iid": the children of a node are independent draws from its distribution; they may repeat.
"without_replacement": the children of a node were drawn from its distribution one after the other,
  without replacement.
"mixed": some children were chosen, see `Draft.chosen`; the others were drawn from what is left,
  without replacement.
"independent": every child was drawn by itself, from a distribution of its own (several models).
"truncated": a chain that may end early, depending on the token that was drawn. Row i of
  `Draft.log_probs` gives the probability that a token is drawn and kept; the draft ends at node i
  with the probability that is missing from 1. Rows are -inf where nothing was drawn.
"coupled": a chain like "chain", but a row of `Draft.log_probs` may tell about the tokens above it.
  Each token has its distribution given those before it and the rows up to its own, not given all
  rows.

Siblings are in the order of their node numbers, which is the order they were drawn in.
"""
PROPOSALS: frozenset[str] = frozenset(get_args(Proposal))

# The arrays that parts exchange. When the loop is traced, `checks.arrays` compares what a part
# returns with them.
PerRow = Int32[Array, " B"]
PerNode = Int32[Array, "B N"]
NodeMask = Bool[Array, "B N"]
Logits = Float32[Array, "B N V"]
States = Float[Array, "B N E"]
PerStep = Int32[Array, "B A"]
Text = Int32[Array, "B S"]


class Draft(NamedTuple):
  """A token tree. A chain is the tree of width 1; plain decoding is the tree with N = 1.

  Attributes:
    tokens: i32[B, N]. Node 0 is the root.
    parent: i32[B, N]. parent[0] = 0 and parent[i] < i.
    depth: i32[B, N]. 0 for the root.
    valid: bool[B, N]. False for padding; the root is always valid.
    log_probs: f32[B, N, V] or None. Row i holds the log-probabilities from which the children of
      node i were drawn; for "independent" proposals, those from which node i itself was drawn.
      None for "deterministic".
    chosen: bool[B, N] or None. For "mixed" proposals, the nodes that were chosen, not drawn.
  """

  tokens: PerNode
  parent: PerNode
  depth: PerNode
  valid: NodeMask
  log_probs: Logits | None = None
  chosen: NodeMask | None = None


class KV(NamedTuple):
  """L arrays of keys (after RoPE), and L of values, one per layer.

  They are [B, K, N, C] for fresh rows of N nodes, and [B, K, S, C] for a cache. `models.hybrid`
  says what those of a recurrent layer are.
  """

  k: tuple[Array, ...]
  v: tuple[Array, ...]


class Cache(NamedTuple):
  """The keys and values [B, K, S, C] of the committed tokens but for the root.

  Attributes:
    length: i32[B], valid rows, one less than the committed tokens. Later rows are garbage.
  """

  kv: KV
  length: PerRow


class Features(NamedTuple):
  """The target's inner states, one row per token.

  Attributes:
    hidden: [B, N, E]. After the final norm: what the LM head reads.
    hidden_layers: arrays [B, N, E], one per layer that was asked for: the residual stream before
      layer i; i = L is the stream before the final norm.
  """

  hidden: States
  hidden_layers: tuple[States, ...] = ()


class Evaluation(NamedTuple):
  """The target at every node.

  Attributes:
    logits: f32[B, N, V]. Row i predicts the token after node i.
    features: Features with arrays [B, N, E].
    kv: KV with arrays [B, K, N, C], which are not in the cache yet.
    aux: what a drafter that replaces `evaluate` computed in the same pass, for its own `update`.
  """

  logits: Logits
  features: Features
  kv: Any
  aux: Any = ()


class Verdict(NamedTuple):
  """What the target accepts of a draft.

  Attributes:
    path: i32[B, A]. Accepted node ids, the root first; entries after `count` repeat the last one.
    count: i32[B]. Accepted draft tokens, 0..D.
    tokens: i32[B, A]. The accepted tokens, then one from the target; count + 1 of them count.
  """

  path: PerStep
  count: PerRow  # type: ignore[assignment]  # hides tuple.count, which nobody calls
  tokens: PerStep


class Context(NamedTuple):
  """The committed text.

  Attributes:
    tokens: i32[B, S]. Entries from `length` on are garbage.
    length: i32[B]. Committed tokens n, the root included; the root is tokens[n - 1].
    cache: the target's cache of the committed tokens but for the root, where a drafter begins and
      where a draft is made; None elsewhere.
  """

  tokens: Text
  length: PerRow
  cache: Any = None

  @property
  def root(self) -> Array:
    """i32[B, 1], the newest committed token."""
    return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, 1)


class RunLayers(Protocol):
  """Runs layers start..stop (static) over the residual stream x [B, N, E]: (x, their KV)."""

  def __call__(
    self,
    params: Params,
    x: Array,
    position: Array,
    mask: Array,
    cache: Any = None,
    *,
    start: int = 0,
    stop: int | None = None,
  ) -> tuple[Array, KV]: ...


class MakeLayers(Protocol):
  """A Linen module of `count` layers shaped like the target's, for drafters that have their own.

  It is called with (x [B, N, E], position i32[B, N], mask, cache=None, earlier=None,
  attention_input=None) and returns x, the KV, and more; see `models.layers.Layers`.

  Args:
    mlp: False leaves the MLPs out, for drafters that have others in their place.
    mlp_width: 0 is the target's.
    attention_width: the width of `attention_input`, where one is given.
    window: of sliding attention; True is the target's, False or None leaves it out.
    qk_norm: False leaves out the target's norms on q and k.
    qkv_bias: whether q, k and v have biases; None is as in the target.
  """

  def __call__(
    self,
    count: int = 1,
    *,
    mlp: bool = True,
    mlp_width: int = 0,
    attention_width: int | None = None,
    window: bool | int | None = True,
    qk_norm: bool = True,
    qkv_bias: bool | None = None,
  ) -> Any: ...


class MakeReaders(Protocol):
  """A Linen module of layers that read what the target has cached, see `models.readers.Readers`.

  Args:
    width, heads, mlp_width: of its layers; 0 is the target's.
    full: of each layer, whether it reads the last keys and values of a layer that sees everything,
      or those of the last that has a sliding window.
  """

  def __call__(self, *, width: int, heads: int, mlp_width: int, full: tuple[bool, ...]) -> Any: ...


class RunSome(Protocol):
  """Runs some of a target's sublayers over the residual stream x [B, N, E].

  Args:
    position: i32[B, N], absolute.
    mask: bool[B, N, N], or bool[B, N, M + N] with M earlier rows, which it has first.
    cache: a Cache whose first `length` rows everyone sees, or None.
    run: bool[L, 2], whether the attention and the MLP of each layer run; a sublayer that does not
      leaves the stream as it is. It is traced: one program serves every choice.
    earlier: KV with arrays [B, K, M, C] of rows that are neither cached nor in x, or None.
    given: KV with arrays [B, K, N, C] of x's rows in layers whose attention does not run, or None.

  Returns:
    (x [B, N, E] before the final norm; KV of all L layers, that of `given`, or else 0, where
    attention does not run; the input [B, N, E] of each of the L layers.)
  """

  def __call__(
    self,
    params: Params,
    x: Array,
    position: Array,
    mask: Array,
    cache: Any,
    run: Array,
    *,
    earlier: KV | None = None,
    given: KV | None = None,
  ) -> tuple[Array, KV, tuple[Array, ...]]: ...


class Prefill(Protocol):
  """Reads prompts, tokens i32[B, T] of which length i32[B] count; caches all but the last token.

  Row i of the features is the state after token i, meaningful for i < length. `capacity` (static)
  is the cache's S; `hidden_layers` (static) are the layers whose input is wanted.
  """

  def __call__(
    self,
    params: Params,
    tokens: Array,
    length: Array,
    capacity: int,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Any, Features]: ...


class Evaluate(Protocol):
  """The target at tokens i32[B, N] of depth i32[B, N]; it reads the cache and never writes.

  Node i sees node j where mask[b, i, j] of mask bool[B, N, N].
  """

  def __call__(
    self,
    params: Params,
    cache: Any,
    tokens: Array,
    depth: Array,
    mask: Array,
    hidden_layers: tuple[int, ...] = (),
  ) -> Evaluation: ...


class Commit(Protocol):
  """The only writer: the cache with the first rows i32[B] nodes of path i32[B, A] appended."""

  def __call__(self, cache: Any, kv: Any, path: Array, rows: Array) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Target:
  """A language model as pure functions. `params` is a pytree that only these functions read.

  Attributes:
    vocab_size: V.
    head: (params, hidden [..., E]) -> logits f32[..., V], the final vocabulary projection.
  """

  vocab_size: int
  prefill: Prefill
  evaluate: Evaluate
  commit: Commit
  head: Callable[[Params, Array], Array]


def _as_float32(products: Array) -> Array:
  return products.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class StatesTarget(Target):
  """A target that shows how it reads tokens and states, for heads that need no layers like its.

  Attributes:
    width: E.
    embed: (params, tokens i32[B, N]) -> [B, N, E].
    lm_head: (params) -> [V, E], the matrix that `head` multiplies with, an array or an Int8.
    logits: products with rows of that matrix -> logits in float32; some families scale or cap them.
  """

  width: int
  embed: Callable[[Params, Array], Array]
  lm_head: Callable[[Params], Array]
  logits: Callable[[Array], Array] = dataclasses.field(default=_as_float32, kw_only=True)


@dataclasses.dataclass(frozen=True)
class LayeredTarget(StatesTarget):
  """A transformer that shows its layers, for heads and drafters that are made of them.

  Attributes:
    layers, heads, head_dim: L, the number of query heads, and C.
    norm_epsilon: the epsilon of its norms.
    norm: (params, x [..., E]) -> [..., E], the final norm.
    last_layer: (params) -> (params of its last layer, params of its final norm), from which the
      training of layers by `make_layers` and of a norm may start.
    make_readers: see its type.
  """

  layers: int
  heads: int
  head_dim: int
  norm_epsilon: float
  run_layers: RunLayers
  run_some: RunSome
  norm: Callable[[Params, Array], Array]
  make_layers: MakeLayers
  last_layer: Callable[[Params], tuple[Params, Params]]
  make_readers: MakeReaders


Shows = TypeVar("Shows", bound=Target)


def showing(kind: type[Shows], target: Target, what: str) -> Shows:
  """The target; ValueError where it is no `kind`, of which `what` is made."""
  if not isinstance(target, kind):
    raise ValueError(
      f"the target of {what} must be a {kind.__name__}, which shows what it is made of, got one of "
      f"type {type(target).__name__}."
    )
  return target


class InitDrafter(Protocol):
  """The state after the prefill, from the features [B, T, E] of the prompt; `capacity` is S."""

  def __call__(
    self,
    params: Params,
    target_params: Params,
    /,
    context: Context,
    features: Features,
    capacity: int,
  ) -> Any: ...


class Propose(Protocol):
  """A draft, whose root is the context's, and the state after it."""

  def __call__(
    self,
    params: Params,
    target_params: Params,
    state: Any,
    /,
    context: Context,
    settings: Settings,
    noise: NoiseSource,
  ) -> tuple[Draft, Any]: ...


class UpdateDrafter(Protocol):
  """The state after verification.

  `rows` i32[B] is how many nodes of verdict.path were committed; 0 marks a finished row.
  """

  def __call__(
    self,
    params: Params,
    target_params: Params,
    state: Any,
    /,
    draft: Draft,
    evaluation: Evaluation,
    verdict: Verdict,
    rows: Array,
  ) -> Any: ...


class EvaluateDraft(Protocol):
  """A pass of the target in place of `Target.evaluate`; mask bool[B, N, N] as in `Evaluate`."""

  def __call__(
    self,
    params: Params,
    target_params: Params,
    state: Any,
    /,
    cache: Any,
    draft: Draft,
    mask: Array,
  ) -> Evaluation: ...


class KeepLearned(Protocol):
  """A drafter's weights after a batch of requests, from its state and their texts when they end."""

  def __call__(self, params: Params, state: Any, /, context: Context) -> Params: ...


class Expects(Protocol):
  """f32[B], how many guesses of a draft of its own the drafter expects to be accepted."""

  def __call__(self, params: Params, /, context: Context, draft: Draft) -> Array: ...


class ChooseSize(Protocol):
  """Which of `Drafter.sizes` drafts in the next rounds, and what a round of them is expected to
  cost, chosen on the host.

  Args:
    prices: f64[C], of a round with a draft of each size, in any one unit.
    state: the drafter's, which tells what all rows have seen.
  """

  def __call__(self, prices: np.ndarray, state: Any, /) -> tuple[int, float]: ...


class Drafter(NamedTuple):
  """A way of guessing, whose state is a fixed-shape pytree that rides in the loop.

  Attributes:
    name: what `specjax list` shows.
    proposal: how tokens are drawn; see `Proposal`.
    nodes: N, the root included (static).
    depth: D, the longest draft (static).
    evaluate: None, or what replaces `Target.evaluate`, for methods that add nodes to its pass.
    hidden_layers: layers of the target whose input the drafter reads, see `Features` (static).
    read: what replaces `update` after a chain of any depth that was not proposed but given, such as
      a user's next turn. None is `update`, for a drafter that reads the accepted path alone.
    keep: None, or what makes the weights with which the next requests begin, for a drafter that
      learns from one request for the next.
    varies: whether drafts often hold fewer than N nodes, so that narrower passes pay (static).
    expects: None, or how much it thinks of a draft, for a choice between several drafters.
    by_pieces: whether a prompt's first token alone, and rounds of `read` over its other tokens in
      pieces, leave the state that the whole prompt leaves. Its arrays that are as long as the cache
      then have a row where the target's cache has one (static).
    sizes: of a drafter whose drafts have several sizes, one drafter for each, the last of N nodes;
      all have its state and its weights. It is itself the last of them, and the deepest.
    chooser: with `sizes`, makes what chooses among them, and may remember; see `Decoder.advance`.
      It is told whether passes are narrow where no row has a guess, see `specjax.bucketing`.
  """

  name: str
  proposal: Proposal
  nodes: int
  depth: int
  init: InitDrafter
  propose: Propose
  update: UpdateDrafter
  evaluate: EvaluateDraft | None = None
  hidden_layers: tuple[int, ...] = ()
  read: UpdateDrafter | None = None
  keep: KeepLearned | None = None
  varies: bool = False
  expects: Expects | None = None
  by_pieces: bool = False
  sizes: "tuple[Drafter, ...]" = ()
  chooser: Callable[[bool], ChooseSize] | None = None


class InitProcessor(Protocol):
  """The state before the first round; the context is the prompt, limit i32[B] where a row ends."""

  def __call__(self, params: Params, context: Context, limit: Array) -> Any: ...


class ProcessLogits(Protocol):
  """The logits f32[B, N, V] to sample from; mask bool[B, N, N] as in `Evaluate`.

  The logits of a node that cannot be reached do not matter, but must not be NaN.
  """

  def __call__(
    self, params: Params, state: Any, /, draft: Draft, mask: Array, logits: Array
  ) -> Array: ...


class EndsText(Protocol):
  """bool[B, A]: whether the text ends with a token i32[B, A] emitted now, given those before it."""

  def __call__(self, params: Params, state: Any, /, tokens: Array) -> Array: ...


class UpdateProcessor(Protocol):
  """The state after the first `rows` i32[B] of the tokens were emitted; 0 marks a finished row."""

  def __call__(self, params: Params, state: Any, /, tokens: Array, rows: Array) -> Any: ...


class Processor(NamedTuple):
  """Changes the target's logits given the text so far, before the sampling settings, or ends it.

  A node of a draft has a text of its own: the committed one and the tokens on its path. `params`
  are the request's and traced; state is a fixed-shape pytree that rides in the loop.
  """

  name: str
  init: InitProcessor
  logits: ProcessLogits
  ends: EndsText
  update: UpdateProcessor


class Verify(Protocol):
  """Decides what is accepted of a draft.

  Args:
    params: the verifier's own, () for most.
    log_probs: f32[B, N, V], the target's after every node.
    features: the target's, at every node.
    noise: tosses the coins and draws the token after the accepted ones.
    depth, proposal: the drafter's (static).
  """

  def __call__(
    self,
    params: Any,
    draft: Draft,
    log_probs: Array,
    features: Features,
    noise: NoiseSource,
    *,
    depth: int,
    proposal: Proposal,
  ) -> Verdict: ...


class Verifier(NamedTuple):
  """A rule of acceptance.

  Attributes:
    name: what `specjax list` shows.
    exactness: "GREEDY-EXACT", "EXACT" or "LOSSY", with its parameter when lossy.
    accepts: the proposals for which the verifier is exact, or, if it is lossy, defined.
    temperature: "zero" for verifiers that follow the argmax, "any" otherwise.
  """

  name: str
  exactness: str
  accepts: frozenset[str]
  temperature: Literal["zero", "any"]
  verify: Verify
