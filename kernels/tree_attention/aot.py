"""Compile the kernels for TPUs and GPUs, without either, and print what the compilers report.

  JAX_PLATFORMS=cpu python -m specjax.kernels.tree_attention.aot v5e h100

prints a line of JSON for each chip and shape of interest; all shapes have 32 query heads and 8
key/value heads. For a GPU, MOSAIC_GPU_DUMP_PTXAS=1 prints the report of ptxas, too.
"""

import dataclasses
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax import checks, command_line
from specjax.kernels import topology
from specjax.kernels.tree_attention.api import paged_attention, refusals, tree_attention
from specjax.kernels.tree_attention.paged import PAGE, Paged
from specjax.kernels.tree_attention.quantised import quantise

K, H = 8, 32


class CompiledShape(NamedTuple):
  """The shape of a call: B, N, S, the dtype of nodes and cache, and C.

  `int8` says whether the cache is Quantised, and `anywhere` whether nodes see any rows of the
  cache, rather than its first ones. `local` adds a window, a cap and sinks; `paged` has the cache
  in pages.
  """

  batch: int
  nodes: int
  capacity: int
  dtype: str = "bfloat16"
  int8: bool = False
  anywhere: bool = False
  width: int = 128
  local: bool = False
  paged: bool = False


def shapes() -> Iterator[CompiledShape]:
  """The shapes of interest."""
  for nodes, (batch, capacity), dtype in itertools.product(
    (1, 8, 16, 64), ((1, 4096), (8, 8192)), ("bfloat16", "float32")
  ):
    yield CompiledShape(batch, nodes, capacity, dtype)
  for int8, anywhere in ((True, False), (False, True), (True, True)):
    yield CompiledShape(1, 8, 4096, "bfloat16", int8, anywhere)
  for width in (80, 96, 192):
    yield CompiledShape(1, 8, 4096, width=width)
  yield CompiledShape(8, 5, 4200)  # neither nodes nor capacity fill a tile
  for batch, nodes, capacity, width in (1, 8, 4096, 64), (8, 64, 8192, 128), (1, 8, 4096, 256):
    yield CompiledShape(batch, nodes, capacity, width=width, local=True)
  yield CompiledShape(1, 8, 4096, int8=True, anywhere=True, local=True)
  for local in (False, True):
    yield CompiledShape(8, 16, 8192, local=local, paged=True)


def arguments(shape: CompiledShape, place: NamedSharding) -> tuple:
  """The arguments of `tree_attention`, as shapes and dtypes."""
  B, N, S, dtype, int8, anywhere, C, _, paged = shape

  def array(*axes: int, dtype=dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(axes, jnp.dtype(dtype), sharding=place)

  tree = array(B, K, N, C)
  cache: Any = array(B, K, S, C)
  if int8:
    rows = jax.eval_shape(quantise, cache)
    cache = jax.tree.map(lambda x: array(*x.shape, dtype=x.dtype), rows)
  if paged:
    width = S // PAGE
    cache = Paged(array(1 + B * width, K, PAGE, C), array(B, width, dtype="int32"))
  prefix = array(B, S, dtype="bool") if anywhere else array(B, dtype="int32")
  return array(B, H, N, C), cache, cache, prefix, tree, tree, array(B, N, N, dtype="bool")


def seen(shape: CompiledShape, place: NamedSharding) -> dict[str, jax.ShapeDtypeStruct]:
  """What else a call with a window and sinks has."""
  if not shape.local:
    return {}
  start = jax.ShapeDtypeStruct((shape.batch, shape.nodes), jnp.int32, sharding=place)
  return {"start": start, "sinks": jax.ShapeDtypeStruct((H,), jnp.float32, sharding=place)}


def report(device: jax.Device, shape: CompiledShape) -> dict:
  """Seconds to compile for one chip, and the bytes that a call needs; or why there are none."""
  kernel = "pallas_tpu" if device.platform == "tpu" else "pallas_gpu"
  mesh = Mesh(np.array([device]), ("chip",))
  place = NamedSharding(mesh, PartitionSpec())
  asked, besides = arguments(shape, place), seen(shape, place)
  start = time.perf_counter()
  try:
    with jax.set_mesh(mesh):
      held = asked[1].pages if shape.paged else asked[1]
      if reason := refusals(asked[0], held, asked[3], **besides)[kernel]:
        return {"refused": reason}
      options: dict[str, Any] = {"cap": 50.0 if shape.local else None}
      if not shape.paged:
        options["implementation"] = kernel
      asks = paged_attention if shape.paged else tree_attention
      attention = jax.jit(functools.partial(asks, **options))
      memory = attention.trace(*asked, **besides).lower().compile().memory_analysis()
  except jax.errors.JaxRuntimeError as error:
    return {"error": str(error)[:2000]}
  return {
    "seconds": round(time.perf_counter() - start, 2),
    "argument_bytes": memory.argument_size_in_bytes,
    "temp_bytes": memory.temp_size_in_bytes,
  }


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled.

  Attributes:
    chips: names of `topology.TPUS` and `topology.GPUS`.
  """

  chips: tyro.conf.Positional[tuple[str, ...]] = tuple(topology.TPUS)


def main(config: Config) -> None:
  """Prints a row for each chip and shape; ValueError where a chip or its compiler is missing."""
  known = topology.TPUS | topology.GPUS
  for name in config.chips:
    checks.choice("chips", name, known)
    if reason := topology.absent(name):
      raise ValueError(f"chips={name!r}: {reason}.")
  for name in config.chips:
    device = topology.devices(known[name])[0]
    for shape in shapes():
      row = {"chip": name, **shape._asdict(), **report(device, shape)}
      print(json.dumps(row), flush=True)


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
