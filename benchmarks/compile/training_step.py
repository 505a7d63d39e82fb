r"""A step of EAGLE-3's training for a large target, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/training_step.py
    JAX_PLATFORMS=cpu python benchmarks/compile/training_step.py --sizes 8b 32b 70b --layers 3 4 \
      --topologies v5e:4x4 v5p:2x2x2 v6e:2x4 v7x:2x2x1 h100:8

It is the step of `specjax.train.heads --online --fsdp`: a frozen target in bfloat16 reads rows of
text, the head learns from its states in float32, and some steps also judge it by held-out rows. The
report has the bytes per chip: of the arguments, which are the target, the head, its moments and its
best weights so far, and the batches; and beyond them. It has the number of collectives, too. Layers
are alike, so that from two numbers of them follows the whole model, which stands beside them.
Nothing is executed or timed. The script needs the compilers (pip install .[aot]).
"""

import collections
import dataclasses
import itertools
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from specjax import checks, script
from specjax.drafters.base import Examples
from specjax.drafters.eagle3 import Eagle3Config, eagle3
from specjax.eval import report, table
from specjax.eval.random_model import SIZES, Size
from specjax.kernels import topology
from specjax.models import sharding, transformer
from specjax.models.weights import parameter
from specjax.train import heads
from specjax.train.recipe.config import Training
from specjax.train.recipe.draft_positions import Batch, Objective
from specjax.train.recipe.fit import stepper


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  topologies: tuple[str, ...] = ("v5e:4x4",)  # names of `topology.CHIPS`
  sizes: tuple[Size, ...] = ("8b",)  # of the target
  layers: tuple[int, ...] = ()  # numbers of layers that are compiled, rising; () is all
  data: int = 2  # chips that share a batch's rows; the others share the target's matrices
  batch: int = 8  # B, rows of a step
  length: int = 2048  # T, tokens of a row
  points: int = 512  # M, positions of a row from which the head drafts
  depth: int = 5  # D, how far ahead the head guesses
  draft_vocab: int = 32000  # W, number of tokens among which the head guesses
  out: str = "results/training_step"  # directory of the report


def spread(name: str, data: int) -> Mesh:
  """The chips of a topology with `data` of them along the axis of rows."""
  chips = topology.mesh(name).devices.reshape(-1)
  if len(chips) % data:
    raise ValueError(f"data={data}: accepted is a number that divides the {len(chips)} chips of "
                     f"{name}.")  # fmt: skip
  return Mesh(chips.reshape(data, -1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def shapes_of_batch(config: Config) -> Batch:
  """The batch of a step, without states: they are computed in it."""
  B, T, M, D = config.batch, config.length, config.points, config.depth
  row, at = (jax.ShapeDtypeStruct((B, n), jnp.int32) for n in (T, M))
  rows: Any = Examples(row, row, row, None, at)  # type: ignore[arg-type]  # shapes of arrays
  labels = jax.ShapeDtypeStruct((B, M, D), jnp.int32)
  return Batch(rows, labels, labels.update(dtype=bool))


def compiled_for(name: str, size: Size, layers: int, config: Config) -> dict:
  """Compiles the step of one target for one topology."""
  mesh = spread(name, config.data)
  model = dataclasses.replace(SIZES[size], layers=layers, max_length=config.length)
  taps = 0, layers // 2, layers
  head = eagle3(transformer.target(model), Eagle3Config(depth=config.depth, hidden_layers=taps))
  vocabulary = np.arange(config.draft_vocab)
  objective = Objective(head, vocabulary, transformer.Transformer(model))
  training = Training(batch=config.batch, fsdp=True)

  def target():
    params = sharding.split(transformer.init(model, jax.random.key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, "float"), params)

  def placed(tree, places):
    if isinstance(places, NamedSharding):
      places = jax.tree.map(lambda _: places, tree)
    return jax.tree.map(
      lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), tree, places
    )

  key, begin = jax.random.key(0), time.perf_counter()
  with jax.set_mesh(mesh):
    dealt, copied = training.shardings()
    frozen = jax.eval_shape(target)
    whole = jax.eval_shape(head.init, key, frozen, vocabulary)
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), whole["params"])
    fixed = placed({k: x for k, x in whole.items() if k != "params"}, copied)
    number = jax.ShapeDtypeStruct((), jnp.float32)
    moments = jax.eval_shape(training.optimizer().init, own)
    state = {"params": own, "optimizer": moments, "best": own, "least": number, "newest": number}
    places = jax.tree.map(training.place_of, state)
    frozen = placed(frozen, sharding.of_params(frozen, mesh))
    loss, passes = heads.functions(objective, jnp.bfloat16, head.loss, 0.0)
    step = stepper(loss, training, places, passes, 50)
    batch = placed(shapes_of_batch(config), dealt)
    arguments = placed(state, places), (frozen, fixed), placed(batch, copied), batch
    compiled = step.lower(
      *arguments, jax.ShapeDtypeStruct((), jnp.int32, sharding=copied)
    ).compile()
  talk = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
  memory = compiled.memory_analysis()
  assert memory is not None
  return {
    "topology": name, "size": size, "layers": layers, "data": config.data,
    "model": mesh.shape["model"], "batch": config.batch, "length": config.length,
    "argument_bytes": memory.argument_size_in_bytes, "beyond_bytes": memory.temp_size_in_bytes,
    "collectives": collections.Counter(re.findall(talk, compiled.as_text() or "")),
    "seconds": round(time.perf_counter() - begin, 1),
  }  # fmt: skip


def whole_model(cells: Sequence[dict]) -> dict:
  """What follows from the last two of `cells`, which differ in their layers, for all layers."""
  few, more = cells[-2:]
  L = SIZES[more["size"]].layers
  steps = (L - more["layers"]) / (more["layers"] - few["layers"])
  every = {kind: round(n + steps * (n - few["collectives"][kind]))
           for kind, n in more["collectives"].items()}  # fmt: skip
  found = {key: round(more[key] + steps * (more[key] - few[key]))
           for key in ("argument_bytes", "beyond_bytes")}  # fmt: skip
  found["beyond_bytes"] = max(found["beyond_bytes"], more["beyond_bytes"])  # it may vary by chance
  return more | found | {"layers": L, "collectives": collections.Counter(every), "seconds": None}


def row(cell: dict) -> dict:
  """A line of the table."""
  held = cell["argument_bytes"] + cell["beyond_bytes"]
  room = topology.CHIPS[cell["topology"]].gigabytes
  return {key: x for key, x in cell.items() if not key.endswith("_bytes")} | {
    "collectives": dict(cell["collectives"]), "argument GB": f"{cell['argument_bytes'] / 1e9:.2f}",
    "beyond GB": f"{cell['beyond_bytes'] / 1e9:.2f}", "of memory": f"{held / room / 1e9:.0%}",
  }  # fmt: skip


def main(config: Config) -> None:
  topology.check(config.topologies)
  report.check(config, "data", "batch", "length", "points", "depth", "draft_vocab")
  checks.whole("points", config.points, 1, config.length)
  if list(config.layers) != sorted({*config.layers}) or min(config.layers, default=1) < 1:
    raise ValueError(f"layers={config.layers}: accepted are rising numbers from 1 on.")
  report.directory(config.out)
  cells = []
  for name, size in itertools.product(config.topologies, config.sizes):
    numbers = config.layers or (SIZES[size].layers,)
    own = [compiled_for(name, size, layers, config) for layers in numbers]
    cells += own + ([whole_model(own)] if len(own) > 1 else [])
  report.publish(config, {"steps": cells}, table.markdown([row(cell) for cell in cells]))


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
