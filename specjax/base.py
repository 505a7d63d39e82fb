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

This file imports nothing of the package.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, get_args

from jax import Array

Params = Any  # a pytree of arrays
Proposal = Literal[
  "deterministic",
  "chain",
  "iid",
  "without_replacement",
  "mixed",
  "independent",
  "pruned",
  "truncated",
]
"""How a drafter's tokens came about, which decides what a verifier may assume.

"deterministic": chosen by a deterministic rule (top-k, lookup); there is no distribution q to correct for.
"chain": one token per depth, drawn from the distribution in `Draft.distribution`.
"iid": the children of a node are independent draws from its distribution; they may repeat.
"without_replacement": the children of a node are drawn from its distribution one after the other, without replacement.
"mixed": some children are chosen, see `Draft.chosen`; then the others are drawn like "without_replacement"
  from what is left.
"independent": every child is drawn by itself, from a distribution of its own (several draft models).
"pruned": drawn, looked at, and then kept or dropped; what was kept has no simple distribution.
"truncated": a chain from which tokens were dropped after a look. Row i of the distribution is that of what is
  kept, its mass below 1: with the rest of it the draft ends there. -inf where nothing was drawn.

Siblings are in the order of their node numbers, which is the order they were drawn in.
"""
PROPOSALS: frozenset[str] = frozenset(get_args(Proposal))


class Draft(NamedTuple):
  """A token tree. A chain is the tree of width 1; plain decoding is the tree with N = 1.

  Attributes:
    tokens: i32[B, N]. Node 0 is the root.
    parent: i32[B, N]. parent[0] = 0 and parent[i] < i.
    depth: i32[B, N]. 0 for the root.
    valid: bool[B, N]. False for padding; the root is always valid.
    distribution: f32[B, N, V] or None. Row i holds the log-probabilities from which the children of node i
      were drawn; for "independent" proposals those from which node i itself was, for "truncated" ones without
      what would have been dropped. None for "deterministic".
    chosen: bool[B, N] or None. For "mixed" proposals, the nodes that were chosen, not drawn.
  """

  tokens: Array
  parent: Array
  depth: Array
  valid: Array
  log_probs: Array | None = None
  chosen: Array | None = None


class KV(NamedTuple):
  """Keys (after RoPE) and values, one array per layer.

  Attributes:
    k: L arrays [B, K, N, C] (fresh rows of N nodes) or [B, K, S, C] (a cache).
    v: the same for values.
  """

  k: tuple[Array, ...]
  v: tuple[Array, ...]


class Cache(NamedTuple):
  """The target's memory of committed tokens, the root excluded.

  Attributes:
    kv: KV with arrays [B, K, S, C]. Rows from `length` on are garbage.
    length: i32[B]. Valid rows: one less than the committed tokens.
  """

  kv: KV
  length: Array


class Features(NamedTuple):
  """The target's inner states, one row per token.

  Attributes:
    hidden: [B, N, E]. After the final norm: what the LM head reads.
    hidden_layers: arrays [B, N, E], one per layer that was asked for: the residual stream before layer i;
      i = L is the stream before the final norm.
  """

  hidden: Array
  hidden_layers: tuple[Array, ...] = ()


class Evaluation(NamedTuple):
  """The target at every node.

  Attributes:
    logits: f32[B, N, V]. Row i predicts the token after node i.
    features: Features with arrays [B, N, E].
    kv: KV with arrays [B, K, N, C]. Fresh; not in the cache yet.
    side: what a drafter that replaces `evaluate` computed in the same pass, for its own `update`.
  """

  logits: Array
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

  path: Array
  count: Array  # type: ignore[assignment]  # hides tuple.count, which nobody calls
  tokens: Array


class Context(NamedTuple):
  """The committed text.

  Attributes:
    tokens: i32[B, S]. Entries from `length` on are garbage.
    length: i32[B]. Committed tokens n, the root included; the root is tokens[n - 1].
  """

  tokens: Array
  length: Array


class Prefill(Protocol):
  """Reads prompts, tokens i32[B, T] of which length i32[B] count, and caches all but the last token.

  Row i of the features is the state after token i, meaningful for i < length. `capacity` (static)
  is the cache's S; `hidden_layers` (static) are the layers whose input is wanted.
  """

  def __call__(
    self, params: Params, tokens: Array, length: Array, capacity: int,
    hidden_layers: tuple[int, ...] = (),
  ) -> tuple[Any, Features]: ...  # fmt: skip


class Evaluate(Protocol):
  """The target at tokens i32[B, N] of depth i32[B, N]; it reads the cache and never writes.

  mask: bool[B, N, N]; mask[b, i, j]: node i sees node j.
  """

  def __call__(
    self, params: Params, cache: Any, tokens: Array, depth: Array, mask: Array,
    hidden_layers: tuple[int, ...] = (),
  ) -> Evaluation: ...  # fmt: skip


class Commit(Protocol):
  """The only writer: the cache with the first rows i32[B] nodes of path i32[B, A] appended."""

  def __call__(self, cache: Any, kv: Any, path: Array, rows: Array) -> Any: ...


class RunLayers(Protocol):
  """The residual stream x [B, N, E] through layers start..stop (static): (x, KV of these layers)."""

  def __call__(
    self, params: Params, x: Array, position: Array, mask: Array, cache: Any = None, *,
    start: int = 0, stop: int | None = None,
  ) -> tuple[Array, KV]: ...  # fmt: skip


class MakeLayers(Protocol):
  """A Linen module of `count` layers shaped like the target's, for drafters that have their own.

  It is called with (x [B, N, E], position i32[B, N], mask, cache=None, earlier=None,
  attention_input=None) and returns x, the KV, and more; see `models.transformer.Layers`.

  Args of the factory: mlp_width is the target's where 0; attention_width is that of
  `attention_input`, where one is given; window and qk_norm = False leave out the sliding window and
  the norms on q and k that the target may have.
  """

  def __call__(
    self, count: int = 1, *, mlp_width: int = 0, attention_width: int | None = None,
    window: bool = True, qk_norm: bool = True,
  ) -> Any: ...  # fmt: skip


def _absent(*args: Any, **kwargs: Any) -> Any:
  raise ValueError("this target lacks a piece of a transformer (embed, run_layers, norm, lm_head, "
                   "make_layers or last_layer) that the drafter is made of.")  # fmt: skip


class Target(NamedTuple):
  """A language model as pure functions. `params` is a pytree that only these functions read.

  Attributes:
    vocab_size: V.
    prefill, evaluate, commit: see `Prefill`, `Evaluate` and `Commit`.
    head: (params, hidden [..., E]) -> logits f32[..., V], the final vocabulary projection.

  A transformer has more, of which draft heads are made. Elsewhere the numbers are 0 and the functions raise
  ValueError.
    width, layers, heads, head_dim: E, L, the number of query heads, and C.
    norm_epsilon: of its norms.
    embed: (params, tokens i32[B, N]) -> [B, N, E].
    run_layers: see `RunLayers`.
    norm: (params, x [..., E]) -> [..., E], the final norm.
    lm_head: (params) -> [V, E], the matrix that `head` multiplies with.
    make_layers: see `MakeLayers`.
    last_layer: (params) -> (the params of its last layer, those of its final norm), which layers
      by `make_layers` and a norm of one's own may start from.
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
  norm: Callable[[Params, Array], Array] = _absent
  lm_head: Callable[[Params], Array] = _absent
  make_layers: MakeLayers = _absent
  last_layer: Callable[[Params], tuple[Params, Params]] = _absent


class Drafter(NamedTuple):
  """A way of guessing. State is a fixed-shape pytree that rides in the loop.

  Attributes:
    name: what `specjax list` shows.
    proposal: how tokens are drawn; see `Proposal`.
    nodes: N, the root included (static).
    depth: D, the longest draft (static).
    init: (params, target_params, context, features [B, T, E], capacity) -> state. After prefill.
    propose: (params, target_params, state, context, settings, noise) -> (Draft, state).
    update: (params, target_params, state, draft, evaluation, verdict, rows i32[B]) -> state.
      `rows` is how many nodes of verdict.path were committed; 0 marks a finished row.
    evaluate: None, or a replacement of Target.evaluate for methods that add nodes to the target's
      own pass: (params, target_params, state, cache, draft, mask) -> Evaluation.
    hidden_layers: layers of the target whose input `init` and `update` want, see `Features` (static).
  """

  name: str
  proposal: Proposal
  nodes: int
  depth: int
  init: Callable[..., Any]
  propose: Callable[..., tuple[Draft, Any]]
  update: Callable[..., Any]
  evaluate: Callable[..., Evaluation] | None = None
  hidden_layers: tuple[int, ...] = ()


class Processor(NamedTuple):
  """What the text so far does to the target's logits, before the sampling settings, or ends a text.

  A node of a draft has a text of its own: the committed one and the tokens on its path. `params`
  are the request's and traced; state is a fixed-shape pytree that rides in the loop.

  Attributes:
    name: of what it does.
    init: (params, context) -> state. The context is the prompt.
    logits: (params, state, draft, mask bool[B, N, N], logits f32[B, N, V]) -> logits. `mask` says
      which nodes a node sees. What a node that cannot be reached is given does not matter, but it
      must not be NaN.
    ends: (params, state, tokens i32[B, A]) -> bool[B, A]. Whether the text ends with a token that
      is emitted now, given those before it.
    update: (params, state, tokens i32[B, A], rows i32[B]) -> state. After the first `rows` tokens
      were emitted; 0 marks a finished row.
  """

  name: str
  init: Callable[..., Any]
  logits: Callable[..., Array]
  ends: Callable[..., Array]
  update: Callable[..., Any]


class Verifier(NamedTuple):
  """A rule of acceptance.

  Attributes:
    name: what `specjax list` shows.
    exactness: "GREEDY-EXACT", "EXACT" or "LOSSY", with its knob when lossy.
    accepts: the proposals it is exact for (for a lossy rule: defined for).
    temperature: "zero" for rules that follow the argmax, "any" otherwise.
    verify: (params, draft, distribution f32[B, N, V], features, noise, drafter) -> Verdict. `params` are the
      rule's own, () for most; `distribution` holds the target's log-probabilities after every node and
      `features` its states there; of `drafter` (static) the depth and the proposal are read.
  """

  name: str
  exactness: str
  accepts: frozenset[str]
  temperature: Literal["zero", "any"]
  verify: Callable[..., Verdict]
