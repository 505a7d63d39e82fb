"""Where confidence stalls, look at what is least known.

Letters: B batch, W window.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from specjax.diffusion.base import Policy, Seen


class Exploration(NamedTuple):
  """Params of `explore`; none of them is published.

  Attributes:
    least: f32[B], the probability that suffices in the block.
    ahead: f32[B], the one that suffices past it.
    fewest: i32[B], commits in the block below which a round explores.
  """

  least: Array
  ahead: Array
  fewest: Array


@functools.cache
def explore() -> Policy:
  """A threshold, a stricter one past the block, and the slot of most entropy in lean rounds.

  Our approximation of explore-then-exploit ("From Bits to Rounds", 2025, arXiv 2511.21103), of
  which neither code nor settings are public: it commits past the block and where a commit tells
  the most, as the paper says that it does. The schedule needs slots `ahead`.
  """

  def select(params: Exploration, memory, seen: Seen):
    sure = seen.open & (seen.confidence >= params.least[:, None])
    past = seen.masked & ~seen.open & (seen.confidence >= params.ahead[:, None])
    lean = sure.sum(1, dtype=jnp.int32) < params.fewest
    most = jnp.argmax(jnp.where(seen.open & ~sure, seen.entropy, -jnp.inf), 1)
    probe = jnp.arange(sure.shape[1])[None] == most[:, None]
    commit = sure | past | (probe & lean[:, None] & seen.open)
    return commit, seen.confidence, memory

  return Policy("explore", lambda B, W, V: (), select)
