"""ADED searches a trigram table that the answer's own trigrams adapt.

Letters: B batch, N nodes, D depth, W beam, S length of texts, C followers of a pair, K candidates.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from specjax.base import Context, Draft, Drafter
from specjax.data.trigrams import FOLLOWERS, Trigrams
from specjax.drafters.stateless import from_draft
from specjax.trees.paths import likeliest
from specjax.trees.structure import gather

RECENT = 512  # of a text, the newest tokens whose trigrams adapt the table
MOST = 3.0  # that a trigram gains by them
ADDED = 4  # followers that only the text has, the latest


def rows_of(table: Trigrams, pairs: tuple[Array, Array]) -> tuple[Array, Array]:
  """(row i32[...] of each pair of tokens in the table, bool[...] whether it has one)."""
  first, second = pairs
  low, high = table.start[first], table.start[first + 1]
  end, last = high, len(table.second) - 1
  for _ in range(max(1, last.bit_length() + 1)):
    middle = low + (high - low) // 2
    right = (table.second[jnp.minimum(middle, last)] < second) & (low < high)
    low, high = jnp.where(right, middle + 1, low), jnp.where(right, high, middle)
  row = jnp.minimum(low, last)
  return row, (low < end) & (table.second[row] == second)


def followers(
  table: Trigrams, recent: Array, pairs: tuple[Array, Array], gain: float
) -> tuple[Array, Array]:
  """What may follow pairs of tokens, and how likely: (tokens i32[B, W, K], f32[B, W, K]).

  Args:
    recent: i32[B, S], the newest tokens of the text, -1 before its start.
    pairs: i32[B, W] each.
    gain: what a trigram gains with every time that the text has it.
  """
  row, known = rows_of(table, pairs)
  tokens = jnp.where(known[..., None], table.following[row], -1)
  weight = jnp.where(tokens >= 0, table.share[row], 0.0)
  a, b = (x[..., None] for x in pairs)
  met = (recent[:, None, :-2] == a) & (recent[:, None, 1:-1] == b)
  third = recent[:, None, 2:]
  times = (met[:, :, None] & (third[:, :, None] == tokens[..., None])).sum(-1, dtype=jnp.float32)
  every, weights = [tokens], [weight + jnp.minimum(gain * times, MOST)]
  place = jnp.arange(1, third.shape[-1] + 1, dtype=jnp.int32)[None, None]
  left = met & ~(third[:, :, None] == tokens[..., None]).any(2)
  for _ in range(ADDED):
    latest = jnp.argmax(jnp.where(left, place, 0), -1).astype(jnp.int32)
    token = jnp.where(left.any(-1), gather(recent[:, 2:], latest), -1)[..., None]
    own = left & (third == token)
    weights.append(jnp.minimum(gain * own.sum(-1, keepdims=True, dtype=jnp.float32), MOST))
    every.append(token)
    left = left & ~own
  total = jnp.concatenate(weights, -1)
  mass = total.sum(-1, keepdims=True)
  return jnp.concatenate(every, -1), total / jnp.where(mass > 0, mass, 1.0)


@functools.cache
def aded(
  nodes: int = 24, beam: int = 12, ahead: int = 4, gain: float = 0.3, least: float = 0.0
) -> Drafter:
  """The likeliest paths through trigrams of a datastore and of the text.

  ADED (Liu et al. 2024, arXiv 2407.12021). Its weights are the table of `data.trigrams`. A pair of
  tokens is followed by what followed it in the corpus and in the newest RECENT tokens of the text;
  every time in the text adds `gain`, MOST in all. A beam search takes the place of the published
  tree search of 150 iterations, whose prior decides nearly alone. The published gain of 0.04 counts
  a trigram at each of about 14 steps in which it lies in the window; here it counts once. There is
  no state: what is adapted follows from the text.

  It was measured with 8 nodes.

  Measured: 1.57 tokens per pass (without_training)

  Args:
    nodes: N.
    beam: W, paths that are followed at each depth.
    ahead: D.
    gain: see above; 0 leaves the corpus alone.
    least: probability of the likeliest next token below which nothing is drafted, so that in a
      choice another drafter does.

  Raises:
    ValueError: less than 2 nodes, no beam or depth, a negative gain, a probability outside 0 to 1,
      or more nodes than a search finds.
  """
  C = FOLLOWERS + ADDED
  most = 1 + C + (ahead - 1) * beam * C
  if min(beam, ahead) < 1 or gain < 0 or not 0 <= least <= 1 or not 2 <= nodes <= most:
    raise ValueError(
      f"`nodes` must be between 2 and {most}, `beam` and `ahead` at least 1, `gain` at least 0 and "
      f"`least` between 0 and 1, got nodes={nodes}, beam={beam}, ahead={ahead}, gain={gain:g} and "
      f"least={least:g}."
    )

  def draft(params: Trigrams, context: Context) -> Draft:
    text, length = context.tokens, context.length
    index = length[:, None] + jnp.arange(-RECENT, 0, dtype=jnp.int32)[None]
    recent = jnp.where(index >= 0, gather(text, jnp.maximum(index, 0)), -1)
    before, last = recent[:, -2:-1], context.root
    score = jnp.where(before >= 0, 0.0, -jnp.inf)  # a text of one token has no pair
    before, parent = jnp.maximum(before, 0), jnp.full(last.shape, -1, jnp.int32)
    pool, seen = [], 0
    for _ in range(ahead):
      tokens, share = followers(params, recent, (before, last), gain)
      reach = score[..., None] + jnp.where(tokens >= 0, jnp.log(share), -jnp.inf)
      width, K = last.shape[1], tokens.shape[-1]
      flat = tokens.reshape(len(length), -1)
      pool.append((flat, reach.reshape(flat.shape), jnp.repeat(parent, K, 1)))
      score, kept = jax.lax.top_k(pool[-1][1], min(beam, width * K))
      before, last = gather(last, kept // K), jnp.maximum(gather(flat, kept), 0)
      parent, seen = seen + kept, seen + width * K
    tree, scores = likeliest(nodes, context.root, pool)
    sure = jnp.exp(pool[0][1].max(1, keepdims=True)) >= least
    valid = tree.valid.at[:, 1:].set((scores > -jnp.inf) & sure)
    return tree._replace(tokens=jnp.maximum(tree.tokens, 0), valid=valid)

  return from_draft("aded", nodes, ahead, draft)
