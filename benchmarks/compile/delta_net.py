"""The bytes of a tree's pass through a recurrent layer, compiled for chips that are absent.

    JAX_PLATFORMS=cpu python benchmarks/compile/delta_net.py

The layer is a Gated DeltaNet of Qwen3-Next's sizes, with weights in bfloat16 and a memory in
float32. Its parts are the rule alone, with the triangular system of the tree; the layer's whole
pass; and the commit of a path. Further there is Mamba-2's rule in Granite 4 tiny's sizes, which has
nothing to solve. Beside the bytes that the compiled program moves between memory and
chip stand the fewest: each argument is read once and each result written once. Nothing is executed
or timed. The script needs the compilers (pip install .[aot]).
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from specjax import command_line
from specjax.eval import compiled, report, table
from specjax.eval.memory import size_of
from specjax.kernels import topology
from specjax.models import gated_delta, recurrence, state_space
from specjax.models.config import Config as ModelConfig
from specjax.models.config import GatedDelta, Kind, Mamba
from specjax.models.delta_net import GatedDeltaNet
from specjax.models.recurrence import State
from specjax.models.weights import parameter
from specjax.sampling import new_key

SIZES = GatedDelta(key_heads=16, value_heads=32, key_dim=128, value_dim=128)
MAMBA = Mamba(heads=48, head_dim=64, groups=1, state=128)
WIDTH = 2048  # E


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compiled."""

  topologies: tuple[str, ...] = ("v5e:1", "h100:1")  # names of `topology.CHIPS`
  batches: tuple[int, ...] = (1, 8)  # B, texts decoded together
  nodes: int = 16  # N, nodes of the tree with its root
  committed: int = 6  # A, rows of the path that is committed
  out: str = "results/delta_net"  # directory of the report


def parts(batch: int, config: Config) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
  """The functions of a pass by name, and the shapes of their arguments."""
  c, B, N = SIZES, batch, config.nodes
  K, H, C, F = c.key_heads, c.value_heads, c.key_dim, c.value_dim
  X = 2 * K * C + H * F

  def shape(*sizes: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)

  kinds = Kind(recurrence=c), Kind()
  whole = ModelConfig(
    vocab_size=8,
    width=WIDTH,
    layers=2,
    heads=16,
    kv_heads=2,
    head_dim=256,
    mlp_width=8,
    kinds=kinds,
  )
  layer = GatedDeltaNet(whole.of_layer(0))
  x, mask = shape(B, N, WIDTH, dtype=jnp.bfloat16), shape(B, N, N, dtype=bool)
  state = State(shape(B, H, C, F), shape(B, c.kernel - 1, X, dtype=jnp.bfloat16))

  def weights(x, mask):
    drawn = layer.init(new_key(0), x, mask, None)
    return jax.tree.map(lambda w: parameter(w, jnp.bfloat16, "float"), drawn)

  def through(params, x, mask, state):
    return layer.apply(params, x, mask, state)

  params = jax.eval_shape(weights, x, mask)
  _, nodes, inputs = jax.eval_shape(through, params, x, mask, state)
  # An array that is there twice would count once.
  q, k, v, gate, rate = (shape(B, *x) for x in ((K, N, C), (K, N, C), (H, N, F), (H, N), (H, N)))
  m = MAMBA
  sizes = (m.heads, m.state, m.head_dim), (m.groups, N, m.state), (m.groups, N, m.state)
  of_mamba = (shape(B, *x) for x in (*sizes, (m.heads, N, m.head_dim), (m.heads, N)))
  path = shape(B, config.committed, dtype=jnp.int32), shape(B, dtype=jnp.int32)
  return {
    "rule": (gated_delta.evaluate, (state.memory, q, k, v, gate, rate, mask)),
    "rule of Mamba-2": (state_space.evaluate, (*of_mamba, mask)),
    "layer": (through, (params, x, mask, state)),
    "commit": (recurrence.commit, (state, nodes, inputs, *path)),
  }


def cell(name: str, batch: int, part: str, config: Config) -> dict[str, Any]:
  """Compiles one part for one topology."""
  function, arguments = parts(batch, config)[part]
  fewest = size_of(arguments) + size_of(jax.eval_shape(function, *arguments))
  mesh = topology.mesh(name)
  everywhere = NamedSharding(mesh, PartitionSpec())
  with jax.set_mesh(mesh):
    lowered = jax.jit(function).lower(*compiled.placed(arguments, everywhere))
    found, text = compiled.found(lowered)
  moved = compiled.accessed(text)
  return {
    "topology": name, "batch": batch, "part": part, "fewest_bytes": fewest, "moved_bytes": moved,
    "temp_bytes": found["temp_bytes"], "over": moved / fewest,
  }  # fmt: skip


def main(config: Config) -> None:
  report.check(config, "batches", "nodes", "committed")
  topology.check(config.topologies)
  report.directory(config.out)
  cells = [
    cell(name, batch, part, config)
    for name in config.topologies
    for batch in config.batches
    for part in parts(batch, config)
  ]
  rows = [
    {
      key.replace("_bytes", " MB"): f"{x / 1e6:.2f}" if key.endswith("_bytes") else x
      for key, x in (one | {"over": f"{one['over']:.2f}"}).items()
    }
    for one in cells
  ]
  report.publish(config, {"parts": cells}, table.markdown(rows))


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
