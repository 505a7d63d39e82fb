"""The arrays that a target, a drafter and a verifier exchange, in the letters of `specjax.base`."""

from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
from jax import Array

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

  tokens: Array
  parent: Array
  depth: Array
  valid: Array
  log_probs: Array | None = None
  chosen: Array | None = None


class KV(NamedTuple):
  """L arrays of keys (after RoPE), and L of values, one per layer.

  They are [B, K, N, C] for fresh rows of N nodes, and [B, K, S, C] for a cache.
  """

  k: tuple[Array, ...]
  v: tuple[Array, ...]


class Cache(NamedTuple):
  """The keys and values [B, K, S, C] of the committed tokens but for the root.

  Attributes:
    length: i32[B], valid rows, one less than the committed tokens. Later rows are garbage.
  """

  kv: KV
  length: Array


class Features(NamedTuple):
  """The target's inner states, one row per token.

  Attributes:
    hidden: [B, N, E]. After the final norm: what the LM head reads.
    hidden_layers: arrays [B, N, E], one per layer that was asked for: the residual stream before
      layer i; i = L is the stream before the final norm.
  """

  hidden: Array
  hidden_layers: tuple[Array, ...] = ()


class Evaluation(NamedTuple):
  """The target at every node.

  Attributes:
    logits: f32[B, N, V]. Row i predicts the token after node i.
    features: Features with arrays [B, N, E].
    kv: KV with arrays [B, K, N, C], which are not in the cache yet.
    aux: what a drafter that replaces `evaluate` computed in the same pass, for its own `update`.
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
    cache: the target's cache of the committed tokens but for the root, where a drafter begins and
      where a draft is made; None elsewhere.
  """

  tokens: Array
  length: Array
  cache: Any = None

  @property
  def root(self) -> Array:
    """i32[B, 1], the newest committed token."""
    return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, 1)
