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

This file imports nothing of the package.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

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
