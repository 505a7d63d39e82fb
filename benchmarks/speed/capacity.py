r"""A decoding step costs what the text is long, not what the cache could hold.

    JAX_PLATFORMS=cpu python benchmarks/capacity.py

One step, evaluate and commit, of a random model over as much text in caches of two capacities, and
over the larger as one dense product, in turns in one run. Times are of the processor, so that
others on the machine disturb them less.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from specjax.eval.verify_cost import passes
from specjax.models import attention
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer, target


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured.

  Attributes:
    layers, width: of the model.
    nodes: N.
    length: rows of text.
    capacity: S, two of them.
    steps: in one timing.
    repeats: timings of each; their median counts.
  """

  layers: int = 4
  width: int = 512
  nodes: int = 8
  length: int = 256
  capacity: tuple[int, int] = (512, 8192)
  steps: int = 4
  repeats: int = 15


def step(config: Config, model: ModelConfig, params, capacity: int) -> Callable[[], float]:
  """Compiled; gives the milliseconds of processor time that a step took."""
  network = target(model)
  tokens = jnp.zeros((1, config.nodes), jnp.int32)
  text = jnp.arange(config.length, dtype=jnp.int32)[None] % model.vocab_size
  cache, _ = network.prefill(params, text, jnp.full(1, config.length, jnp.int32), capacity)
  compiled = passes.lower(network, params, cache, tokens, jnp.int32(0)).compile()

  def once() -> float:
    nonlocal cache
    start = time.process_time()
    cache, _ = jax.block_until_ready(compiled(params, cache, tokens, jnp.int32(config.steps)))
    return 1e3 * (time.process_time() - start) / config.steps

  return once


def main(config: Config) -> None:
  model = ModelConfig(
    vocab_size=2048, width=config.width, layers=config.layers, heads=8, kv_heads=4, head_dim=64,
    mlp_width=4 * config.width, max_length=max(config.capacity),
  )  # fmt: skip
  z = jnp.zeros((1, 2), jnp.int32)
  params = Transformer(model).init(jax.random.key(0), z, z, jnp.ones((1, 2, 2), bool))
  at_capacity = functools.partial(step, config, model, params)
  small, large = config.capacity
  ways = {f"capacity {small}": at_capacity(small), f"capacity {large}": at_capacity(large)}
  with mock.patch.object(attention, "reads_blocks", lambda cache: False):
    jax.clear_caches()  # of what was traced with blocks
    ways[f"capacity {large}, one product"] = at_capacity(large)
  turns = np.array([[once() for once in ways.values()] for _ in range(1 + config.repeats)])[1:]
  for name, each in zip(ways, turns.T, strict=True):
    share = np.median(each / turns[:, 0])
    low, high = np.percentile(each, (25, 75))
    print(f"{name:28} {np.median(each):6.1f} ms [{low:.1f}, {high:.1f}]  {share:.2f} of the first")


if __name__ == "__main__":
  main(tyro.cli(Config))
