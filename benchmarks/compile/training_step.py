r"""A step of a head's training for a large target, compiled for chips that this machine lacks.

    JAX_PLATFORMS=cpu python benchmarks/compile/training_step.py
    JAX_PLATFORMS=cpu python benchmarks/compile/training_step.py --sizes 8b 32b 70b --layers 3 4 \
      --topologies v5e:4x4 v5p:2x2x2 v6e:2x4 v7x:2x2x1 h100:8
    JAX_PLATFORMS=cpu python benchmarks/compile/training_step.py --topologies h100:8 --layers 2 3 \
      --data 1 --sequence 8 --batch 1 --length 32768

It is the step of `specjax.train.heads --online --fsdp`: a frozen target in bfloat16 reads rows of
text, the head learns from its states in float32, and some steps also judge it by held-out rows. The
report has the bytes per chip: of the arguments, which are the target, the head, its moments and its
best weights so far, and the batches; and beyond them. It has the largest array that is written, and
the number of collectives, too. Layers are alike, so that from two numbers of them follows the whole
model, which stands beside them. Nothing is executed or timed. The script needs the compilers (pip
install .[aot]).
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
from specjax.eval.random_model import SIZES, HeadName, Size, large_head, own_vocabulary
from specjax.heads.base import Examples
from specjax.kernels import topology
from specjax.models import ring, sharding, transformer
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
  head: HeadName = "eagle3"  # what is trained
  data: int = 2  # chips that share a batch's rows; the others share the target's matrices
  sequence: int = 1  # chips, of those others, that share the tokens of a row instead
  batch: int = 8  # B, rows of a step
  length: int = 2048  # T, tokens of a row
  points: int = 512  # M, positions of a row from which the head drafts
  depth: int = 5  # D, how far ahead the head guesses
  draft_vocab: int = 32000  # W, number of tokens among which EAGLE-3 guesses
  out: str = "results/training_step"  # directory of the report


def spread(name: str, data: int, sequence: int) -> Mesh:
  """The chips of a topology, `data` and `sequence` of them along the axes of these names."""
  chips = topology.mesh(name).devices.reshape(-1)
  for axis, others, count in (("data", 1, data), ("sequence", data, sequence)):
    if len(chips) % (others * count):
      raise ValueError(
        f"`{axis}` must divide the {len(chips) // others} chips of {name}, got {count}."
      )
  names = "data", "model", *([ring.AXIS] if sequence > 1 else [])
  shape = (data, -1, sequence)[: len(names)]
  return Mesh(chips.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def shapes_of_batch(config: Config) -> Batch:
  """The batch of a step, without states: they are computed in it."""
  B, D = config.batch, config.depth
  T, M = (ring.filled(n) for n in (config.length, config.points))

  absent: Any = None

  def shape(*sizes: int, dtype: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct((B, *sizes), dtype)

  rows = Examples(shape(T), shape(T), shape(T), absent, shape(M))
  return Batch(rows, shape(M, D), shape(M, D, dtype=bool))


def compiled_for(name: str, size: Size, layers: int, config: Config) -> dict:
  """Compiles the step of one target for one topology."""
  mesh = spread(name, config.data, config.sequence)
  model = dataclasses.replace(SIZES[size], layers=layers, max_length=config.length)
  head = large_head(config.head, transformer.target(model), config.depth)
  vocabulary = np.arange(config.draft_vocab) if own_vocabulary(config.head) else None
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
      batch,
      batch,
    )
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=copied)
    found, text = compiled.found(step.lower(*arguments, number))
    found["largest"] = compiled.largest(text)
    found["ideal_bytes"] = compiled.share(arguments, mesh.size)
  return {
    "topology": name, "size": size, "head": config.head, "layers": layers, "data": config.data,
    "model": mesh.shape["model"], "sequence": config.sequence, "batch": config.batch,
    "length": config.length, **found,
  }  # fmt: skip


def main(config: Config) -> None:
  report.check(config, "data", "sequence", "batch", "length", "points", "depth", "draft_vocab")
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
