"""The time of a target pass over N nodes, also in units of a pass over one.

A tree of N nodes pays off where block efficiency exceeds v(N) / v(1), apart from drafting.

Letters: B batch, N tree nodes, A committed rows.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import sampling
from specjax.base import Cache, Params, Target
from specjax.eval import table, timing

NODES = (1, 2, 4, 8, 16, 32)
_PATH = 8  # rows that a commit writes, at most


class VerifyCost(NamedTuple):
  """The time v(N) of a target pass over N nodes.

  Attributes:
    nodes: N of each measurement.
    seconds: median time of one evaluate and commit.
    low, high: the fastest and the slowest repeat.
    context: cached tokens during the measurement.
    batch: B.
    relative: v(N) / v(first N).
  """

  nodes: list[int]
  seconds: list[float]
  low: list[float]
  high: list[float]
  context: int
  batch: int
  relative: list[float]

  @property
  def markdown(self) -> str:
    """A heading and a table."""
    columns = (self.nodes, self.seconds, self.low, self.high, self.relative)
    rows = [
      {
        "nodes": n,
        "ms": f"{1e3 * s:.2f}",
        "fastest": f"{1e3 * low:.2f}",
        "slowest": f"{1e3 * high:.2f}",
        "passes over one": f"{times:.2f}",
      }
      for n, s, low, high, times in zip(*columns, strict=True)
    ]
    heading = f"The cost of verifying N nodes at {self.context} cached tokens:"
    return f"{heading}\n\n{table.markdown(rows)}"


def chain(nodes: int) -> tuple[int, ...]:
  """The parent of each node of a chain; the root's is itself."""
  return (0, *range(nodes - 1))


@functools.partial(jax.jit, static_argnames=("target", "parent"), donate_argnames="cache")
def passes(
  target: Target,
  params: Params,
  cache: Cache,
  tokens: Array,
  count: Array,
  parent: tuple[int, ...] | None = None,
):
  """`count` passes over tokens i32[B, N], each fed the argmax of the one before.

  So the compiler can neither drop a pass nor hoist it. The cache's length is reset after each, so
  that all passes cost the same. The nodes are a chain, or a tree by each node's `parent`, which
  comes before it.
  """
  B, N = tokens.shape
  node = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, N))
  seen = np.eye(N, dtype=bool)
  for i, above in enumerate(chain(N) if parent is None else parent):
    seen[i] |= seen[above]
  depth = jnp.broadcast_to(jnp.asarray(seen.sum(1) - 1, jnp.int32), (B, N))
  mask = jnp.broadcast_to(jnp.asarray(seen), (B, N, N))

  def body(_, carry):
    cache, tokens = carry
    evaluation = target.evaluate(params, cache, tokens, depth, mask)
    following = sampling.most_likely(evaluation.logits)
    one = jnp.minimum(following[:, 0], 0) + 1  # 1, but unlike a constant it waits for the logits
    written = target.commit(cache, evaluation.kv, node[:, :_PATH], one)
    return written._replace(length=cache.length), following

  return jax.lax.fori_loop(0, count, body, (cache, tokens))


def measure(
  target: Target,
  params: Params,
  context: int,
  *,
  batch: int = 1,
  nodes: Sequence[int] = NODES,
  repeats: int = 7,
) -> VerifyCost:
  """Times one evaluate and commit after `context` tokens for every N, in turns."""
  _, _, cache, _ = timing.prefilled(target, params, context, batch, context + 64)

  def loop(n: int, count: int) -> Cache:
    nonlocal cache  # every loop gives its buffers to the next
    tokens = jnp.zeros((batch, n), jnp.int32)
    cache, _ = passes(target, params, cache, tokens, jnp.int32(count))
    return cache

  seconds = timing.per_pass([functools.partial(loop, n) for n in nodes], repeats)
  median, low, high = (x.tolist() for x in (np.median(seconds, 0), seconds.min(0), seconds.max(0)))
  relative = [s / median[0] for s in median]
  return VerifyCost(list(nodes), median, low, high, context, batch, relative)
