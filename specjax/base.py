"""The contract: what a target, a drafter and a verifier are, and the arrays they exchange.

Letters: B batch, N tree nodes (node 0 is the root), D maximum draft depth, A = D + 1 rows of an
accepted path, S cache length, L layers, V vocabulary, E model width, K key/value heads, C head
dimension, T prompt length (in training, row length), M positions a head drafts from.

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

Of the package this file imports `arrays`, which it hands on, and `sampling`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from jax import Array

from specjax.arrays import (
  KV,
  PROPOSALS,
  Cache,
  Context,
  Draft,
  Evaluation,
  Features,
  Params,
  Proposal,
  Verdict,
)
from specjax.sampling import Settings, Source

__all__ = [
  "KV", "PROPOSALS", "Cache", "Context", "Draft", "Drafter", "Evaluation", "Examples", "Features",
  "Head", "LossWeights", "Params", "Processor", "Proposal", "Target", "Verdict", "Verifier",
  "Verify",
]  # fmt: skip


class Target(NamedTuple):
  """A language model as pure functions. `params` is a pytree that only these functions read.

  Attributes:
    vocab_size: V.
    prefill: (params, tokens i32[B, T], length i32[B], capacity, hidden_layers=()) -> (cache, Features).
      Caches the first length - 1 tokens; `capacity` (static) is the cache's S. Row i of the
      features is the state after token i, meaningful for i < length. `hidden_layers` (static) are layers.
    evaluate: (params, cache, tokens i32[B, N], depth i32[B, N], mask bool[B, N, N], hidden_layers=()) ->
      Evaluation. Reads the cache, never writes. mask[b, i, j]: node i sees node j.
    commit: (cache, kv, path i32[B, A], rows i32[B]) -> cache. The only writer: appends the first
      `rows` nodes of `path` (0 leaves a row as it is).
    head: (params, hidden [..., E]) -> logits f32[..., V]. The final vocabulary projection.

  The pieces that a drafter may compose; None where a target is no transformer:
    embed: (params, tokens i32[B, N]) -> [B, N, E].
    run_layers: (params, x [B, N, E], position i32[B, N], mask, cache=None, *, start=0, stop=None)
      -> (x, KV). The residual stream through layers start..stop.
    norm: (params, x [..., E]) -> [..., E]. The final norm.
    lm_head: (params) -> [V, E]. The matrix that `head` multiplies with.
  """

  vocab_size: int
  prefill: Callable[..., Any]
  evaluate: Callable[..., Evaluation]
  commit: Callable[..., Any]
  head: Callable[..., Array]
  embed: Any = None
  run_layers: Any = None
  norm: Any = None
  lm_head: Any = None


class InitDrafter(Protocol):
  """The state after the prefill, from the features [B, T, E] of the prompt; `capacity` is S."""

  def __call__(
    self, params: Params, target_params: Params, /,
    context: Context, features: Features, capacity: int,
  ) -> Any: ...  # fmt: skip


class Propose(Protocol):
  """A draft, whose root is the context's, and the state after it."""

  def __call__(
    self, params: Params, target_params: Params, state: Any, /,
    context: Context, settings: Settings, noise: Source,
  ) -> tuple[Draft, Any]: ...  # fmt: skip


class UpdateDrafter(Protocol):
  """The state after verification.

  `rows` i32[B] is how many nodes of verdict.path were committed; 0 marks a finished row.
  """

  def __call__(
    self, params: Params, target_params: Params, state: Any, /,
    draft: Draft, evaluation: Evaluation, verdict: Verdict, rows: Array,
  ) -> Any: ...  # fmt: skip


class EvaluateDraft(Protocol):
  """A pass of the target in place of `Target.evaluate`; mask bool[B, N, N], see there."""

  def __call__(
    self, params: Params, target_params: Params, state: Any, /,
    cache: Any, draft: Draft, mask: Array,
  ) -> Evaluation: ...  # fmt: skip


class Drafter(NamedTuple):
  """A way of guessing, whose state is a fixed-shape pytree that rides in the loop.

  Attributes:
    name: what `specjax list` shows.
    proposal: how tokens are drawn; see `Proposal`.
    nodes: N, the root included (static).
    depth: D, the longest draft (static).
    init, propose, update: see their types.
    evaluate: None, or what replaces `Target.evaluate`, for methods that add nodes to its pass.
    hidden_layers: layers of the target whose input it wants, see `Features` (static).
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


class Examples(NamedTuple):
  """What a draft head learns from: texts, the frozen target's states, and where to draft.

  Attributes:
    tokens: i32[B, T].
    position: i32[B, T], from 0 within each text.
    segment: i32[B, T], which text of the row; -1 is padding.
    features: Features with arrays [B, T, E], the layers of `Head.hidden_layers`.
    at: i32[B, M], the positions from which the head drafts. `at` + d + 1 may lie past the text or
      even the row: what the head says there is not used, but must not be NaN.
  """

  tokens: Array
  position: Array
  segment: Array
  features: Features
  at: Array


class LossWeights(NamedTuple):
  """Terms of the loss at depth d = 1..D, all weighted by decay ** (d - 1); nats.

  Attributes:
    hard: cross-entropy with the text.
    soft: cross-entropy with the target's distribution.
    feature: smooth L1 between the state that is read and the target's hidden state.
    decay: of the weight from depth to depth.
  """

  hard: float = 1.0
  soft: float = 0.0
  feature: float = 0.0
  decay: float = 0.8


class Head(NamedTuple):
  """A drafter that is trained on a frozen target, before its tree is chosen.

  `params` is a dict of collections: "params" is trained; "vocabulary", where there is one, is
  i32[W], the target ids of a reduced draft vocabulary (W <= V entries) and stays as it is.

  Attributes:
    name: of the method.
    depth: D, how far ahead it was made to guess (static).
    hidden_layers: layers of the target it reads, see `Features` (static).
    loss: the published loss.
    init: (key, target_params, vocabulary i32[W] or None) -> params.
    unroll: (params, target_params, examples) -> D arrays [B, M, E']. State d - 1 is what the head
      reads to guess depth d, the token at `at` + d + 1, given the true tokens before it: as it
      would while drafting. Depth 0, the token at `at` + 1, is the target's own to say.
    read: (params, target_params, state [..., E'], d) -> logits f32[..., W]; d = 1..D is static.
    drafter: (tree) -> Drafter; see `trees.grow.Tree`.
  """

  name: str
  depth: int
  hidden_layers: tuple[int, ...]
  loss: LossWeights
  init: Callable[..., Params]
  unroll: Callable[..., tuple[Array, ...]]
  read: Callable[..., Array]
  drafter: Callable[..., Drafter]


class InitProcessor(Protocol):
  """The state before the first round; the context is the prompt."""

  def __call__(self, params: Params, context: Context) -> Any: ...


class ProcessLogits(Protocol):
  """The logits f32[B, N, V] to sample from; mask bool[B, N, N] says which nodes a node sees.

  What a node that cannot be reached is given does not matter, but it must not be NaN.
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
  """What the text so far does to the target's logits, before the sampling settings, or ends a text.

  A node of a draft has a text of its own: the committed one and the tokens on its path. `params`
  are the request's and traced; state is a fixed-shape pytree that rides in the loop.

  Attributes:
    name: of what it does.
    init, logits, ends, update: see their types.
  """

  name: str
  init: InitProcessor
  logits: ProcessLogits
  ends: EndsText
  update: UpdateProcessor


class Verify(Protocol):
  """What is accepted of a draft.

  Args:
    params: the rule's own, () for most.
    draft: Draft.
    log_probs: f32[B, N, V], the target's after every node.
    features: the target's states there.
    noise: tosses the coins and draws the token after the accepted ones.
    depth, proposal: the drafter's (static).
  """

  def __call__(
    self, params: Any, draft: Draft, log_probs: Array, features: Features, noise: Source,
    *, depth: int, proposal: Proposal,
  ) -> Verdict: ...  # fmt: skip


class Verifier(NamedTuple):
  """A rule of acceptance.

  Attributes:
    name: what `specjax list` shows.
    exactness: "GREEDY-EXACT", "EXACT" or "LOSSY", with its knob when lossy.
    accepts: the proposals it is exact for (for a lossy rule: defined for).
    temperature: "zero" for rules that follow the argmax, "any" otherwise.
    verify: see its type.
  """

  name: str
  exactness: str
  accepts: frozenset[str]
  temperature: Literal["zero", "any"]
  verify: Verify
