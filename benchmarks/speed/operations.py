"""Where the time of a target pass goes: plain, over trees, and by operation.

    python benchmarks/speed/operations.py --model smollm2-135m

First the pass over N nodes is timed, then one run of each is recorded by XLA's profiler. Operations
of one kind and shape are added up; the time of one lasts until the next begins, so that waiting
counts. Recording slows the pass by a few percent. The table of operations is for the CPU, where
they run one after another.
"""

import collections
import dataclasses
import itertools
import pathlib
import re
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp

import specjax
from specjax import checks, command_line
from specjax.cli.arguments import Dtype, Weights
from specjax.eval import report, table, timing, verify_cost
from specjax.models import transformer

PASSES = 8  # that are recorded


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  model: str = "gsm8k-7m"  # name, directory or file of the model
  dtype: Dtype = "float32"  # of the arithmetic
  weights: Weights = "float"  # how matrices lie in memory
  nodes: tuple[int, ...] = (1, 8, 15, 16)  # N of each pass
  context: int = 128  # cached tokens
  repeats: int = 7  # timings; their median counts
  rows: int = 12  # operations in each table
  out: str = "results/operations"  # directory of the report


def recorded(folder: str) -> list[tuple[float, str]]:
  """(start in ns, name) of every operation that XLA's threads ran, in order."""
  (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
  events = [
    (event.start_ns, event.name)
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes
    for line in plane.lines
    if line.name.startswith("tf_XLA")
    for event in line.events
    if re.fullmatch(r"[a-z][\w.-]*", event.name)
  ]
  return sorted(events)


def operations(target, params, context: int, nodes: int) -> list[dict[str, Any]]:
  """The kinds of operations of one pass over `nodes`, the longest first, in ms a pass."""
  _, _, cache, _ = timing.prefilled(target, params, context, 1, context + 64)
  tokens = jnp.zeros((1, nodes), jnp.int32)
  lowered = verify_cost.passes.lower(target, params, cache, tokens, jnp.int32(PASSES))
  shapes = dict(re.findall(r"%([\w.-]+) = (\w+\[[\d,]*\])", lowered.compile().as_text() or ""))
  cache, _ = verify_cost.passes(target, params, cache, tokens, jnp.int32(1))
  jax.block_until_ready(cache)
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      jax.block_until_ready(verify_cost.passes(target, params, cache, tokens, jnp.int32(PASSES)))
    events = recorded(folder)
  time: dict[tuple[str, str], float] = collections.defaultdict(float)
  count: collections.Counter[tuple[str, str]] = collections.Counter()
  for (start, name), (end, _) in itertools.pairwise(events):
    kind = re.sub(r"[.\d]+$", "", name), shapes.get(name, "")
    time[kind] += end - start
    count[kind] += 1
  return [
    {
      "operation": name,
      "shape": shape,
      "a pass": f"{count[name, shape] / PASSES:.0f}",
      "ms": f"{each / 1e6 / PASSES:.2f}",
    }
    for (name, shape), each in sorted(time.items(), key=lambda item: -item[1])
  ]


def main(config: Config) -> None:
  report.check(config, "repeats", "context", "rows")
  for n in config.nodes:
    checks.whole("nodes", n, 1)
  model = specjax.load(config.model, config.dtype, weights=config.weights)
  target = transformer.target(model.config)
  report.directory(config.out)
  cost = verify_cost.measure(
    target, model.params, config.context, nodes=config.nodes, repeats=config.repeats
  )
  texts, found = [cost.markdown], {}
  if jax.default_backend() == "cpu":
    for n in config.nodes:
      found[n] = operations(target, model.params, config.context, n)
      texts.append(f"Operations of a pass over {n}:\n\n{table.markdown(found[n][: config.rows])}")
  report.publish(config, {"verify_cost": cost._asdict(), "operations": found}, "\n\n".join(texts))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
