"""Trees of what followed the last tokens in earlier requests and in the text, by how often it did.

The papers keep these counts in tries and suffix trees on the host. Here earlier requests lie in the
ring of `history` with the text behind them, and each round counts what followed the best places
anew: those of the longest matches, then the latest.

Letters: B batch, C groups, D depth, H tokens that are kept, K places, N nodes,
T = H + 1 + the length of a text + D.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter, Params
from specjax.drafters.retrieval.history import SEPARATOR, append
from specjax.drafters.retrieval.prefixes import tree_of
from specjax.drafters.retrieval.prompt_lookup import suffix_match
from specjax.drafters.stateless import from_draft
from specjax.trees.structure import gather

PLACES, AHEAD = 64, 12  # K, and the most of D


def _check(nodes: int, longest: int, shortest: int, kept: int, name: str, times: int) -> None:
  known = nodes >= 2 and 1 <= shortest <= longest <= 64 and 1 <= kept <= 2**24
  if not known or not 1 <= times <= 1000:
    raise ValueError(
      "`nodes` must be at least 2, `shortest` between 1 and `longest`, `longest` at most 64, "
      f"`kept` between 1 and 2**24 and `{name}` between 1 and 1000, got nodes={nodes}, "
      f"longest={longest}, shortest={shortest}, kept={kept} and {name}={times}."
    )


def _from_places(
  name: str,
  nodes: int,
  lengths: tuple[int, int],
  kept: int,
  groups: Callable[[Array, Array], Array],
  most: Sequence[int],
) -> Drafter:
  """A drafter of the commonest prefixes of what followed the best places.

  Args:
    lengths: of a match, the longest that is told apart and the shortest.
    groups: (matched i32[B, 1, K], in the text itself bool[B, 1, K]) -> [B, C, K] and
    most: C numbers; see `tree_of`.
  """
  longest, shortest = lengths
  depth = min(AHEAD, nodes - 1)

  def copied(ring: Array, context: Context) -> tuple[Draft, Array]:
    B, length = len(context.length), context.length
    column = jnp.arange(context.tokens.shape[1], dtype=jnp.int32)[None]
    text = jnp.where(column < length[:, None], context.tokens, SEPARATOR)
    past = jnp.broadcast_to(jnp.append(ring, SEPARATOR), (B, kept + 1))
    texts = jnp.concatenate([past, text, jnp.full((B, depth), SEPARATOR, jnp.int32)], 1)
    T = texts.shape[1]
    # The separator before the text is no token of it.
    matched = jnp.minimum(suffix_match(texts, kept + 1 + length, longest), length[:, None])
    score = (matched * T + jnp.arange(T, dtype=jnp.int32)[None]).astype(jnp.float32)
    place = jax.lax.top_k(score, min(PLACES, T))[1]  # slow with integers
    step = place[..., None] + 1 + jnp.arange(depth, dtype=jnp.int32)[None, None]
    step = jnp.minimum(step, T - 1)
    rows = gather(texts, step.reshape(B, -1)).reshape(step.shape)
    matched, place = gather(matched, place)[:, None], place[:, None]
    weight = groups(matched, place > kept).astype(jnp.float32)
    weight = jnp.where(matched >= shortest, weight, 0)
    return tree_of(rows, context.root, nodes, weight, jnp.array(most, jnp.int32))

  def draft(params: Params, context: Context) -> Draft:
    return copied(params, context)[0]

  def keep(params: Params, state: Any, context: Context) -> Params:
    return append(params, context.tokens, context.length)

  def expects(params: Params, context: Context, draft: Draft) -> Array:
    return copied(params, context)[1]

  return from_draft(name, nodes, depth, draft)._replace(keep=keep, expects=expects)


@functools.cache
def trie(
  nodes: int = 8,
  longest: int = 2,
  shortest: int = 1,
  own: int = 4,
  kept: int = 2**15,
) -> Drafter:
  """Copies a tree of what followed most often, in earlier requests and the text.

  This is Lookahead (Zhao et al. 2023, arXiv 2312.12728): of all that followed the longest match of
  at most two tokens, the prefixes that occurred most often are drafted, the text's own more. Its
  weights are those of `history`; of more than 64 places the latest count.

  Measured: 2.37 tokens per pass (trees)

  Args:
    nodes: N.
    longest, shortest: how many of the last tokens may match, and must.
    own: a place in the text itself counts as so many of earlier requests.
    kept: H, tokens.
  """
  _check(nodes, longest, shortest, kept, "own", own)

  def groups(matched: Array, in_text: Array) -> Array:
    return jnp.where(matched == matched[..., :1], jnp.where(in_text, own, 1), 0)

  return _from_places("trie", nodes, (longest, shortest), kept, groups, [nodes - 1])


@functools.cache
def suffix_decoding(
  nodes: int = 8,
  longest: int = 8,
  shortest: int = 1,
  per_match: int = 4,
  kept: int = 2**15,
) -> Drafter:
  """Copies a tree of likely continuations of the most promising match.

  This is SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975). For each length of a match, in the
  text and in earlier requests apart, the continuations that are likeliest by their counts are a
  tree, larger for a longer match. The tree of which most tokens are expected is drafted, and
  `a|b` asks for that number. Its weights are those of `history`; at most 64 places count, those of
  the longest matches, then the latest.

  Measured: 2.32 tokens per pass (trees)

  Args:
    nodes: N.
    longest, shortest: lengths of a match.
    per_match: nodes of a tree for each token that matched, the paper's alpha.
    kept: H, tokens.
  """
  _check(nodes, longest, shortest, kept, "per_match", per_match)
  lengths = [n for n in range(longest, shortest - 1, -1) for _ in ("text", "earlier requests")]

  def groups(matched: Array, in_text: Array) -> Array:
    of_text = jnp.arange(len(lengths), dtype=jnp.int32)[None, :, None] % 2 == 0
    return (matched >= jnp.array(lengths, jnp.int32)[None, :, None]) & (in_text == of_text)

  most = [min(per_match * n, nodes - 1) for n in lengths]
  return _from_places("suffix_decoding", nodes, (longest, shortest), kept, groups, most)
