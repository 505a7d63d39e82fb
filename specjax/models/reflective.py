"""Reflective verification: the target reads each token again, after a prompt to reflect.

Letters: B batch, N nodes, P prompt tokens, V vocabulary.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import checks
from specjax.base import Cache, Evaluation, Features, Params, Target


def _check(target: Target, prompt: tuple[int, ...], weight: float) -> None:
  if not checks.ids("prompt", prompt, target.vocab_size):
    checks.refuse("prompt", prompt, "at least one token id")
  checks.number("weight", weight, 0, 1)


def _mixed(both: Evaluation, second: Array, weight: float) -> Evaluation:
  """The first N nodes of a pass, with logits that are mixed with those of a second reading."""
  N = second.shape[1]
  states = Features(*jax.tree.map(lambda x: x[:, :N], tuple(both.features)))
  kv = jax.tree.map(lambda x: x[:, :, :N], both.kv)
  logits = (1 - weight) * both.logits[:, :N] + weight * second
  return Evaluation(logits, states, kv, both.aux)


@functools.cache
def reflective(target: Target, prompt: tuple[int, ...], weight: float = 0.3) -> Target:
  """Mixes in a second reading of each token, after a prompt to reflect.

  The method is that of arXiv 2505.18629, whose weight is 0.3. It is LOSSY where the distribution of
  `target` is wanted. It has a distribution of its own, for which every drafter, every verifier and
  plain decoding are as exact as for any other target: only `evaluate` differs, so every emitted
  token follows that distribution, and the cache holds what the cache of `target` would.

  In the pass, P + 1 more rows follow node v: the prompt, and v's token again, from whose row z' is
  read. They see the committed text, the path to v, and each other causally; no node sees them, and
  they are dropped. Row i of them is i positions after v. A pass is thus P + 2 times as wide.

  The published layout, `reflective_once`, is cheaper and has no such distribution, for its logits
  after a token depend on the tokens drafted after that one. A tree's mask would not help while
  there is one prompt per round, since rounds that began elsewhere can reach the same text.
  Therefore each node has a prompt here.

  A drafter that replaces `evaluate` (such as ppd or hidden_transfer) runs the target's pass itself,
  and its texts follow the plain distribution.

  The logits are (1 - weight) z + weight z', with z' from that reading. It was measured at T = 0.8,
  where every text changes.

  Measured: 2.28 tokens per pass for 1.68 (lossy_verifiers)

  Args:
    target: a causal model. Its positions must reach P + 1 past the text.
    prompt: ids that ask to reconsider.
    weight: share of the second reading, 0 to 1.

  Raises:
    ValueError: an empty prompt, an id outside the vocabulary, or a weight outside 0 to 1.
  """
  _check(target, prompt, weight)
  rows = len(prompt) + 1

  def evaluate(
    params: Params, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    B, N = tokens.shape
    question = jnp.broadcast_to(jnp.asarray(prompt, tokens.dtype), (B, N, rows - 1))
    again = jnp.concatenate([question, tokens[:, :, None]], 2).reshape(B, -1)
    below = jnp.repeat(depth, rows, 1) + jnp.tile(jnp.arange(1, rows + 1), N)[None]
    causal = np.kron(np.eye(N, dtype=bool), np.tri(rows, dtype=bool))
    own = jnp.broadcast_to(causal, (B, *causal.shape))
    hidden = jnp.zeros((B, N, N * rows), bool)
    both = target.evaluate(
      params,
      cache,
      jnp.concatenate([tokens, again], 1),
      jnp.concatenate([depth, below], 1),
      jnp.block([[mask, hidden], [jnp.repeat(mask, rows, 1), own]]),
      hidden_layers,
    )
    return _mixed(both, both.logits[:, N:].reshape(B, N, rows, -1)[:, :, -1], weight)

  return dataclasses.replace(target, evaluate=evaluate)


@functools.cache
def reflective_once(target: Target, prompt: tuple[int, ...], weight: float = 0.3) -> Target:
  """The published layout: one prompt after the whole draft, read again.

  A pass has 2 N + P rows, where `reflective` has (P + 2) N. The prompt sees the whole draft, and a
  node's second reading z' sees the draft, the prompt, and the second readings on its path, which in
  a chain is a plain causal mask. The root is read again too, so that every node has a z'.

  It is LOSSY and has no distribution of its own: what is said after a token depends on what was
  drafted after it, so that drafters differ in their texts, and plain decoding reads each token
  with nothing behind it. For the arguments and errors see `reflective`; the target's positions must
  reach P + N past the text.

  Measured at T = 0.8, every text is another (arXiv 2505.18629).

  Measured: 2.18 tokens per pass (lossy_verifiers)
  """
  _check(target, prompt, weight)
  P = len(prompt)

  def evaluate(
    params: Params, cache: Cache, tokens: Array, depth: Array, mask: Array, hidden_layers=()
  ) -> Evaluation:
    B, N = tokens.shape
    question = jnp.broadcast_to(jnp.asarray(prompt, tokens.dtype), (B, P))
    after = depth.max(1, keepdims=True) + 1
    asked = after + jnp.arange(P, dtype=depth.dtype)[None]
    causal = jnp.broadcast_to(jnp.asarray(np.tri(P, dtype=bool)), (B, P, P))
    every, none = jnp.ones_like(mask), jnp.zeros_like(mask)
    seen = jnp.block(
      [
        [mask, none[:, :, :1].repeat(P, 2), none],
        [every[:, :1].repeat(P, 1), causal, none[:, :1].repeat(P, 1)],
        [every, every[:, :, :1].repeat(P, 2), mask],
      ]
    )
    both = target.evaluate(
      params,
      cache,
      jnp.concatenate([tokens, question, tokens], 1),
      jnp.concatenate([depth, asked, after + P + depth], 1),
      seen,
      hidden_layers,
    )
    return _mixed(both, both.logits[:, N + P :], weight)

  return dataclasses.replace(target, evaluate=evaluate)
