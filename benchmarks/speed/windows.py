r"""A pass over a cache that holds of sliding windows the newest rows, beside one that holds all.

    JAX_PLATFORMS=cpu python benchmarks/speed/windows.py --model gemma3-270m

Each step is a pass over a chain of N nodes, of which one is committed, so that the text grows as in
decoding and rows are moved when they have left every window. Both caches take turns. Their rows
are zeros at first, since no time depends on what they hold.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax import checks, command_line, sampling
from specjax.base import Params, Target
from specjax.cli.arguments import Weights
from specjax.eval import report, table


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "gemma3-270m"  # zoo name, directory, GGUF file, or name on the hub
  weights: Weights = "float"  # how matrices lie in memory
  lengths: tuple[int, ...] = (500, 2000, 8000)  # tokens of the text at the beginning
  nodes: tuple[int, ...] = (1, 8)  # values of N, the nodes of a step
  steps: int = 16  # steps in one timing
  repeats: int = 9  # timings of each cache
  out: str = "results/windows"  # directory of the report


@functools.partial(jax.jit, static_argnames="target", donate_argnames="cache")
def grown(target: Target, params: Params, cache: Any, tokens: Array, count: Array) -> Any:
  """(cache, tokens) after `count` steps, each fed the likeliest tokens of the one before."""
  B, N = tokens.shape
  node = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, N))
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((N, N), bool)), (B, N, N))

  def body(_, carry):
    cache, tokens = carry
    found = target.evaluate(params, cache, tokens, node, mask)
    cache = target.commit(cache, found.kv, node[:, :1], jnp.ones(B, jnp.int32))
    return cache, sampling.most_likely(found.logits)

  return jax.lax.fori_loop(0, count, body, (cache, tokens))


def stepped(
  target: Target, params: Params, length: int, N: int, config: Config
) -> tuple[Callable[[], float], int]:
  """(a function that takes the steps of one timing and returns the seconds of each, the cache's
  bytes)."""
  capacity = -(-(length + N + config.steps * (config.repeats + 1)) // 64) * 64
  read = functools.partial(target.prefill, capacity=capacity)
  shapes, _ = jax.eval_shape(read, params, jnp.zeros((1, 64), jnp.int32), jnp.full(1, 64))
  cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  cache = cache._replace(length=jnp.full(1, length, jnp.int32))
  size = sum(x.nbytes for x in jax.tree.leaves(cache))
  tokens = jnp.zeros((1, N), jnp.int32)

  def once() -> float:
    nonlocal cache, tokens
    begin = time.perf_counter()
    cache, tokens = jax.block_until_ready(
      grown(target, params, cache, tokens, jnp.int32(config.steps))
    )
    return (time.perf_counter() - begin) / config.steps

  return once, size


def main(config: Config) -> None:
  report.check(config, "steps", "repeats")
  model = specjax.load(config.model, weights=config.weights)
  if not getattr(model.config, "windows", ()):
    checks.refuse("model", config.model, "one whose layers have sliding windows")
  report.directory(config.out)
  rows, cells = [], []
  sizes = [(length, N) for length in config.lengths for N in config.nodes]
  for length, N in report.progress(sizes, "timing"):
    every, all_bytes = stepped(model.drafting, model.params, length, N, config)
    newest, newest_bytes = stepped(model.target, model.params, length, N, config)
    turns = np.array([[every(), newest()] for _ in range(1 + config.repeats)])[1:]
    share = np.percentile(turns[:, 1] / turns[:, 0], (50, 25, 75))
    ms = 1e3 * np.median(turns, 0)
    held = {"all rows": all_bytes, "newest rows": newest_bytes}
    cells.append({"length": length, "nodes": N, "bytes": held, "seconds": turns.tolist()})
    rows.append(
      {"tokens": length, "nodes": N}
      | {f"MB, {name}": f"{size / 1e6:.0f}" for name, size in held.items()}
      | {f"ms, {name}": f"{each:.1f}" for name, each in zip(held, ms, strict=True)}
      | {"newest over all": "{:.2f} [{:.2f}, {:.2f}]".format(*share)}
    )
  report.publish(config, {"cells": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
