"""The time of compiled work, measured in turns with other work."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.base import Cache, Features, Params, Target
from specjax.eval import report

# Of one timing, of which the start of a loop is a small part: on a GPU it takes milliseconds.
_SECONDS = 0.02 if jax.default_backend() == "cpu" else 0.3
MOST = 64  # passes in one timing


def prefilled(
  target: Target,
  params: Params,
  context: int,
  batch: int,
  capacity: int,
  hidden_layers: tuple[int, ...] = (),
) -> tuple[Array, Array, Cache, Features]:
  """(ids i32[B, A], lengths i32[B], cache, features) of a text of `context` tokens in each row."""
  ids = jnp.broadcast_to(jnp.arange(context, dtype=jnp.int32) % target.vocab_size, (batch, context))
  length = jnp.full(batch, context, jnp.int32)
  prefill = jax.jit(target.prefill, static_argnums=(3, 4))
  return ids, length, *prefill(params, ids, length, capacity, hidden_layers)


def per_pass(loops: Sequence[Callable[[int], Any]], repeats: int) -> np.ndarray:
  """Seconds f64[repeats, loops] of one pass of each loop, timed in turns.

  `loop(count)` runs up to MOST passes and returns arrays that depend on all of them. The first call
  may compile.
  """

  def timed(loop: Callable[[int], Any], count: int) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(loop(count))
    return (time.perf_counter() - begin) / count

  counts: list[int] = []
  for loop in report.progress(loops, "compiling"):
    timed(loop, 1)
    counts.append(max(1, min(MOST, round(_SECONDS / timed(loop, 1)))))
  turns = [[timed(*each) for each in zip(loops, counts, strict=True)] for _ in range(repeats)]
  return np.array(turns).reshape(repeats, len(loops))
