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

Of the package this file imports `arrays` and `pieces`, which it hands on, and `sampling`.
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
from specjax.pieces import MakeLayers, RunLayers, RunSome
from specjax.sampling import Settings, Source

__all__ = [
  "KV", "PROPOSALS", "Cache", "Context", "Draft", "Drafter", "Evaluation", "Features", "Params",
  "Processor", "Proposal", "Target", "Verdict", "Verifier", "Verify",
]  # fmt: skip


class Prefill(Protocol):
  """Reads prompts, tokens i32[B, T] of which length i32[B] count; caches all but the last token.

  Row i of the features is the state after token i, meaningful for i < length. `capacity` (static)
  is the cache's S; `hidden_layers` (static) are the layers whose input is wanted.
  """

  def __call__(
    self, params: Params, tokens: Array, length: Array, capacity: int,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Any, Features]: ...  # fmt: skip


class Evaluate(Protocol):
  """The target at tokens i32[B, N] of depth i32[B, N]; it reads the cache and never writes.

  Node i sees node j where mask[b, i, j] of mask bool[B, N, N].
  """

  def __call__(
    self, params: Params, cache: Any, tokens: Array, depth: Array, mask: Array,
    hidden_layers: tuple[int, ...] = (),
  ) -> Evaluation: ...  # fmt: skip


class Commit(Protocol):
  """The only writer: the cache with the first rows i32[B] nodes of path i32[B, A] appended."""

  def __call__(self, cache: Any, kv: Any, path: Array, rows: Array) -> Any: ...


def _absent(*args: Any, **kwargs: Any) -> Any:
  raise ValueError("this target lacks a piece of a transformer (embed, run_layers, run_some, norm, "
                   "lm_head, make_layers or last_layer) that the drafter is made of.")  # fmt: skip


class Target(NamedTuple):
  """A language model as pure functions. `params` is a pytree that only these functions read.

  Attributes:
    vocab_size: V.
    head: (params, hidden [..., E]) -> logits f32[..., V], the final vocabulary projection.

  A transformer has more fields, of which draft heads are made. Elsewhere these numbers are 0, and
  these functions raise ValueError.
    width, layers, heads, head_dim: E, L, the number of query heads, and C.
    norm_epsilon: the epsilon of its norms.
    embed: (params, tokens i32[B, N]) -> [B, N, E].
    norm: (params, x [..., E]) -> [..., E], the final norm.
    lm_head: (params) -> [V, E], the matrix that `head` multiplies with, an array or an Int8.
    last_layer: (params) -> (params of its last layer, params of its final norm), from which the
      training of layers by `make_layers` and of a norm may start.
  """

  vocab_size: int
  prefill: Prefill
  evaluate: Evaluate
  commit: Commit
  head: Callable[[Params, Array], Array]
  width: int = 0
  layers: int = 0
  heads: int = 0
  head_dim: int = 0
  norm_epsilon: float = 0.0
  embed: Callable[[Params, Array], Array] = _absent
  run_layers: RunLayers = _absent
  run_some: RunSome = _absent
  norm: Callable[[Params, Array], Array] = _absent
  lm_head: Callable[[Params], Array] = _absent
  make_layers: MakeLayers = _absent
  last_layer: Callable[[Params], tuple[Params, Params]] = _absent


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
  """A pass of the target in place of `Target.evaluate`; mask bool[B, N, N] as in `Evaluate`."""

  def __call__(
    self, params: Params, target_params: Params, state: Any, /,
    cache: Any, draft: Draft, mask: Array,
  ) -> Evaluation: ...  # fmt: skip


class KeepLearned(Protocol):
  """A drafter's weights after a batch of requests, from its state and their texts when they end."""

  def __call__(self, params: Params, state: Any, /, context: Context) -> Params: ...


class Expects(Protocol):
  """f32[B], how many guesses of a draft of its own the drafter expects to be accepted."""

  def __call__(self, params: Params, /, context: Context, draft: Draft) -> Array: ...


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
    params: the rule's own, () for most.
    log_probs: f32[B, N, V], the target's after every node.
    features: the target's, at every node.
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
    accepts: the proposals for which the rule is exact, or, if it is lossy, defined.
    temperature: "zero" for rules that follow the argmax, "any" otherwise.
  """

  name: str
  exactness: str
  accepts: frozenset[str]
  temperature: Literal["zero", "any"]
  verify: Verify
