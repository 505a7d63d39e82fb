"""REST copies from a datastore of texts what followed the last tokens there.

He et al. 2023 (arXiv 2311.08252). The datastore and its suffix array lie on the device, so the
search is part of the compiled loop: two bisections for each length of the match.

Letters: B batch, M tokens of the datastore, K continuations, D depth, N nodes.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter
from specjax.data.datastore import SEPARATOR
from specjax.drafters.retrieval.prefixes import tree_of
from specjax.drafters.stateless import from_draft
from specjax.trees.structure import gather

CONTINUATIONS = 32  # K, spread evenly over all occurrences


def occurrences(store: tuple[Array, Array], query: Array, count: Array) -> tuple[Array, Array]:
  """Where among the sorted suffixes those lie that begin with the first tokens of a query.

  Args:
    store: (tokens i32[M], order i32[M]), see `data.datastore.Datastore`.
    query: i32[Q, L].
    count: i32[Q], how many tokens of it must agree, 1 to L.

  Returns:
    (first, end), i32[Q] each; equal where there is none.
  """
  tokens, order = store
  M, (Q, L) = len(tokens), query.shape
  step = jnp.arange(L, dtype=jnp.int32)[None]
  query, count = jnp.tile(query, (2, 1)), jnp.tile(count, 2)[:, None]
  upper = jnp.arange(2 * Q) >= Q  # the second half looks for the end

  def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = bounds
    middle = low + (high - low) // 2
    index = order[jnp.minimum(middle, M - 1)][:, None] + step
    suffix = jnp.where(index < M, tokens[jnp.minimum(index, M - 1)], SEPARATOR)
    differs = (suffix != query) & (step < count)
    first = jnp.argmax(differs, 1).astype(jnp.int32)[:, None]
    less = (gather(suffix, first) < gather(query, first))[:, 0]
    right = jnp.where(differs.any(1), less, upper) & (low < high)
    return jnp.where(right, middle + 1, low), jnp.where(right, high, middle)

  bounds = jnp.zeros(2 * Q, jnp.int32), jnp.full(2 * Q, M, jnp.int32)
  found, _ = jax.lax.fori_loop(0, M.bit_length() + 1, halve, bounds)
  return found[:Q], found[Q:]


@functools.cache
def rest(nodes: int = 8, longest: int = 8, shortest: int = 2, ahead: int = 7) -> Drafter:
  """Copies a tree of what followed the last tokens in a datastore.

  It is what followed their longest match.

  This is REST (He et al. 2023, arXiv 2311.08252). Its weights are (tokens i32[M], order i32[M]) of
  `data.datastore`, 8 bytes for a token. Of many occurrences, continuations are read at even
  distances, and the prefixes that most of them share are drafted. No match crosses the border of
  two texts. Without a match nothing is drafted.

  Measured: 1.24 tokens per pass (without_training)

  Args:
    nodes: N.
    longest, shortest: how many of the last tokens may match, and must.
    ahead: D, tokens of a continuation.
  """
  if nodes < 2 or not 1 <= shortest <= longest <= 16 or not 1 <= ahead <= 16:
    raise ValueError(
      "`nodes` must be at least 2, `shortest` between 1 and `longest`, `longest` at most 16 and "
      f"`ahead` between 1 and 16, got nodes={nodes}, longest={longest}, shortest={shortest} and "
      f"ahead={ahead}."
    )
  K = min(CONTINUATIONS, 4 * nodes)

  counts = jnp.arange(shortest, longest + 1, dtype=jnp.int32)[:, None]  # C lengths of a match

  def draft(params: tuple[Array, Array], context: Context) -> Draft:
    tokens, order = params
    M, (B, S), C = len(tokens), context.tokens.shape, len(counts)
    begin = context.length[None] - counts
    index = begin[..., None] + jnp.arange(longest, dtype=jnp.int32)[None, None]
    index = jnp.clip(index, 0, S - 1).transpose(1, 0, 2).reshape(B, -1)
    query = gather(context.tokens, index).reshape(B, C, longest).transpose(1, 0, 2)
    each = jnp.broadcast_to(counts, (C, B)).reshape(-1)
    low, high = occurrences(params, query.reshape(C * B, longest), each)
    low, high = low.reshape(C, B), jnp.where(begin >= 0, high.reshape(C, B), 0)
    best = jnp.argmax(jnp.where(high > low, counts, 0), 0)[None]  # the longest match
    first, many, matched = (
      jnp.take_along_axis(x, best, 0)[0]
      for x in (low, jnp.maximum(high - low, 0), jnp.broadcast_to(counts, (C, B)))
    )
    share = (jnp.arange(K, dtype=jnp.float32)[None] + 0.5) / K
    place = first[:, None] + (share * many[:, None].astype(jnp.float32)).astype(jnp.int32)
    repeated = jnp.pad(place[:, 1:] == place[:, :-1], ((0, 0), (1, 0)))
    index = order[jnp.minimum(place, M - 1)] + matched[:, None]
    index = index[..., None] + jnp.arange(ahead, dtype=jnp.int32)[None, None]
    rows = jnp.where(index < M, tokens[jnp.minimum(index, M - 1)], SEPARATOR)
    counts_once = ~repeated & (many > 0)[:, None]
    weight = counts_once[:, None].astype(jnp.float32)
    return tree_of(rows, context.root, nodes, weight, jnp.array([nodes - 1], jnp.int32))[0]

  return from_draft("rest", nodes, ahead, draft)
