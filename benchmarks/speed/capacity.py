r"""The time of a decoding step grows with the text, not with the capacity of the cache.

    JAX_PLATFORMS=cpu python benchmarks/speed/capacity.py

One step (evaluate and commit) of a random model is timed over the same text in caches of two
capacities, and in the larger one as one dense product, in turns. It is processor time, which other
work on the machine disturbs less.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from specjax import command_line
from specjax.eval import report, table, timing
from specjax.eval.verify_cost import passes
from specjax.models import attention, transformer
from specjax.models.config import Config as ModelConfig
from specjax.sampling import new_key


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  layers: int = 4  # number of layers of the model
  width: int = 512  # E, width of the model
  nodes: int = 8  # N, nodes of a step
  length: int = 256  # number of cached tokens
  capacity: tuple[int, int] = (512, 8192)  # two values of S, the capacity
  steps: int = 4  # number of steps in one timing
  repeats: int = 15  # timings of each; their median counts
  out: str = "results/capacity"  # directory of the report


def step(config: Config, model: ModelConfig, params, capacity: int) -> Callable[[], float]:
  """A compiled step; a call returns the milliseconds of processor time of a step."""
  network = transformer.target(model)
  tokens = jnp.zeros((1, config.nodes), jnp.int32)
  _, _, cache, _ = timing.prefilled(network, params, config.length, 1, capacity)
  compiled = passes.lower(network, params, cache, tokens, jnp.int32(0)).compile()

  def once() -> float:
    nonlocal cache
    start = time.process_time()
    cache, _ = jax.block_until_ready(compiled(params, cache, tokens, jnp.int32(config.steps)))
    return 1e3 * (time.process_time() - start) / config.steps

  return once


def main(config: Config) -> None:
  small, large = config.capacity
  report.check(config, "nodes", "length", "steps", "repeats")
  if not config.length + config.nodes <= small <= large:
    raise ValueError(
      f"`capacity` must be two numbers of at least {config.length + config.nodes}, the text's "
      f"length and the nodes, the smaller first, got {small} and {large}."
    )
  model = ModelConfig(
    vocab_size=2048,
    width=config.width,
    layers=config.layers,
    heads=8,
    kv_heads=4,
    head_dim=64,
    mlp_width=4 * config.width,
    max_length=max(config.capacity),
  )
  report.directory(config.out)
  params = transformer.init(model, new_key(0))
  at_capacity = functools.partial(step, config, model, params)
  ways = {f"capacity {small}": at_capacity(small), f"capacity {large}": at_capacity(large)}
  with mock.patch.object(attention, "reads_blocks", lambda *_: False):
    jax.clear_caches()  # of what was traced with blocks
    ways[f"capacity {large}, one product"] = at_capacity(large)
  turns = np.array([[once() for once in ways.values()] for _ in range(1 + config.repeats)])[1:]
  rows = [
    {
      "cache": name,
      "ms of a step": "{:.1f} [{:.1f}, {:.1f}]".format(*np.percentile(each, (50, 25, 75))),
      "of the first": f"{np.median(each / turns[:, 0]):.2f}",
    }
    for name, each in zip(ways, turns.T, strict=True)
  ]
  times = dict(zip(ways, turns.T.tolist(), strict=True))
  report.publish(config, {"milliseconds": times}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
