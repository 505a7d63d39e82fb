"""A pass over a tree of N nodes beside a pass over a chain of as many.

    python benchmarks/speed/tree_pass.py --model runs/hybrid/model

Each node of the tree has two children, level by level. For a network that only attends, trees and
chains differ by their masks and positions. For one with recurrent layers (Qwen3-Next) the mask is
also that of a triangular system. All passes are timed in turns; each holds a commit of one row.
"""

import dataclasses
import functools
import sys

import jax.numpy as jnp
import numpy as np

import specjax
from specjax import command_line
from specjax.base import Cache
from specjax.eval import report, table, timing, verify_cost


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "gsm8k-7m"  # name, directory or file of the model
  nodes: tuple[int, ...] = (4, 8, 16)  # N of each pair of passes
  context: int = 128  # cached tokens
  repeats: int = 15  # timings of each; their median counts
  out: str = "results/tree_pass"  # directory of the report


def binary(nodes: int) -> tuple[int, ...]:
  """The parent of each node of a tree in which every node has two children."""
  return (0, *((i - 1) // 2 for i in range(1, nodes)))


def main(config: Config) -> None:
  report.check(config, "nodes", "context", "repeats")
  model = specjax.load(config.model, weights="float")
  report.directory(config.out)
  capacity = config.context + 64
  *_, cache, _ = timing.prefilled(model.target, model.params, config.context, 1, capacity)

  def loop(parent: tuple[int, ...], count: int) -> Cache:
    nonlocal cache  # every loop gives its buffers to the next
    tokens = jnp.zeros((1, len(parent)), jnp.int32)
    cache, _ = verify_cost.passes(
      model.target, model.params, cache, tokens, jnp.int32(count), parent
    )
    return cache

  shapes = [verify_cost.chain(1)]
  shapes += [shape(n) for n in config.nodes for shape in (verify_cost.chain, binary)]
  seconds = timing.per_pass([functools.partial(loop, shape) for shape in shapes], config.repeats)
  one, chains, trees = seconds[:, :1], seconds[:, 1::2], seconds[:, 2::2]

  def quartiles(ratio: np.ndarray) -> str:
    middle, *interval = np.percentile(ratio, (50, 25, 75))
    return table.estimate(middle, interval)

  rows = [
    {
      "nodes": n,
      "chain, ms": f"{1e3 * np.median(chains[:, i]):.2f}",
      "tree, ms": f"{1e3 * np.median(trees[:, i]):.2f}",
      "tree over chain": quartiles(trees[:, i] / chains[:, i]),
      "chain over one node": quartiles(chains[:, i] / one[:, 0]),
      "tree over one node": quartiles(trees[:, i] / one[:, 0]),
    }
    for i, n in enumerate(config.nodes)
  ]
  found = {"one": one.tolist(), "chains": chains.tolist(), "trees": trees.tolist()}
  note = f"A pass over one node takes {1e3 * np.median(one):.2f} ms."
  report.publish(config, found, f"{table.markdown(rows)}\n\n{note}")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
