"""A target pass over N nodes with XLA's products, with those in C++, and with weights of few bits.

    python benchmarks/speed/few_rows.py --model smollm2-135m

The ways are timed in turns, on one CPU; the fastest of the repeats counts.
"""

import dataclasses
import functools
import sys
from unittest import mock

import jax
import jax.numpy as jnp
from jax import Array

import specjax
from specjax import checks, command_line
from specjax.eval import report, table, timing, verify_cost
from specjax.kernels import compiled
from specjax.models import transformer

# How weights lie in each, and what they multiply.
WAYS = {
  "xla": ("float", "float"),
  "skinny": ("float", "float"),
  "native": ("native", "float"),
  "native/int8": ("native", "int8"),
  "int8": ("int8", "float"),
  "int4": ("int4", "float"),
  "int4/int8": ("int4", "int8"),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "smollm2-135m"  # name or file of a model in GGUF
  ways: tuple[str, ...] = tuple(WAYS)  # what is timed
  nodes: tuple[int, ...] = verify_cost.NODES  # N of each pass
  context: int = 200  # cached tokens
  repeats: int = 10  # timings
  out: str = "results/few_rows"  # directory of the report


class Way:
  """A model whose passes have programs of their own."""

  def __init__(self, name: str, model: specjax.Model, context: int, capacity: int):
    # While the programs are traced, XLA's way finds no library.
    self.held = mock.patch.object(compiled, "available", lambda: name != "xla")
    self.target = transformer.target.__wrapped__(model.config)  # no other way's
    self.params = model.params
    with self.held:
      self.cache = timing.prefilled(self.target, self.params, context, 1, capacity)[2]

  def passes(self, nodes: int, count: int) -> Array:
    """`count` passes over as many nodes."""
    tokens = jnp.zeros((1, nodes), jnp.int32)
    with self.held:
      self.cache, last = verify_cost.passes(
        self.target, self.params, self.cache, tokens, jnp.int32(count)
      )
    return last


def main(config: Config) -> None:
  """Times the passes, and prints and keeps the table."""
  report.check(config, "nodes", "context", "repeats")
  for name in config.ways:
    checks.choice("ways", name, WAYS)
  if jax.device_count() > 1 or not compiled.available():
    raise ValueError("the products in C++ need one CPU and a C++ compiler.")
  kinds = dict.fromkeys(WAYS[name] for name in config.ways)
  models = {
    (weights, activations): specjax.load(config.model, weights=weights, activations=activations)
    for weights, activations in kinds
  }
  capacity = config.context + max(64, *config.nodes)
  ways = [Way(name, models[WAYS[name]], config.context, capacity) for name in config.ways]
  loops = [functools.partial(way.passes, n) for way in ways for n in config.nodes]
  seconds = timing.per_pass(loops, config.repeats).min(0).reshape(len(ways), -1)
  ms = {name: (1e3 * own).tolist() for name, own in zip(config.ways, seconds, strict=True)}
  rows = [
    {
      "way": name,
      **{str(n): f"{t:.1f} / {t / own[0]:.2f}" for n, t in zip(config.nodes, own, strict=True)},
    }
    for name, own in ms.items()
  ]
  text = f"A pass over N nodes, ms / times one over the first N:\n\n{table.markdown(rows)}"
  report.publish(config, {"ms": ms}, text)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
