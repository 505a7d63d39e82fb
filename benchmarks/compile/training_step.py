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

import dataclasses
import functools
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from specjax import checks, command_line
from specjax.eval import compiled, report, table
from specjax.eval.compiled import placed
from specjax.eval.random_model import SIZES, Size
from specjax.heads.base import Examples
from specjax.heads.eagle3 import Eagle3Config, eagle3
from specjax.kernels import topology
from specjax.models import sharding, transformer
from specjax.models.weights import parameter
from specjax.sampling import new_key
from specjax.train.recipe.config import Training
from specjax.train.recipe.draft_positions import Batch, Objective
from specjax.train.recipe.fit import stepper
from specjax.train.recipe.head_loss import loss_and_judge


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
    raise ValueError(f"`data` must divide the {len(chips)} chips of {name}, got {data}.")
  return Mesh(chips.reshape(data, -1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def shapes_of_batch(config: Config) -> Batch:
  """The batch of a step, without states: they are computed in it."""
  B, T, M, D = config.batch, config.length, config.points, config.depth

  absent: Any = None

  def shape(*sizes: int, dtype: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct((B, *sizes), dtype)

  rows = Examples(shape(T), shape(T), shape(T), absent, shape(M))
  return Batch(rows, shape(M, D), shape(M, D, dtype=bool))


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
    params = sharding.split(transformer.init(model, new_key(0)))
    return jax.tree.map(lambda x: parameter(x, jnp.bfloat16, "float"), params)

  key = new_key(0)
  with jax.set_mesh(mesh):
    dealt, copied = training.shardings()
    frozen = jax.eval_shape(target)
    whole = jax.eval_shape(head.init, key, frozen, vocabulary)
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), whole["params"])
    fixed = placed({k: x for k, x in whole.items() if k != "params"}, copied)
    figure = jax.ShapeDtypeStruct((), jnp.float32)
    moments = jax.eval_shape(training.transformation().init, own)
    state = {"params": own, "optimizer": moments, "best": own, "least": figure, "newest": figure}
    places = jax.tree.map(training.place_of, state)
    frozen = placed(frozen, sharding.of_params(frozen, mesh))
    loss, passes = loss_and_judge(objective, jnp.bfloat16, head.loss, 0.0)
    step = stepper(loss, training, places, passes, 50)
    batch = placed(shapes_of_batch(config), dealt)
    arguments = (
      placed(state, places),
      (frozen, fixed),
      placed(batch, copied),
      batch,
    )
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=copied)
    found, _ = compiled.found(step.lower(*arguments, number))
  return {
    "topology": name, "size": size, "layers": layers, "data": config.data,
    "model": mesh.shape["model"], "batch": config.batch, "length": config.length, **found,
  }  # fmt: skip


def main(config: Config) -> None:
  report.check(config, "data", "batch", "length", "points", "depth", "draft_vocab")
  checks.whole("points", config.points, 1, config.length)
  compiled.check_layers(config.layers)
  topology.check(config.topologies)
  report.directory(config.out)
  cells = []
  for name, size in itertools.product(config.topologies, config.sizes):
    one = functools.partial(compiled_for, name, size, config=config)
    cells += compiled.by_layers(one, config.layers, SIZES[size].layers)
  report.publish(config, {"steps": cells}, table.markdown(list(map(compiled.row, cells))))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
