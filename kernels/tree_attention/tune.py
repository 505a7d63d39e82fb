"""Find the block size that reads the cache fastest on this device.

  python -m specjax.kernels.tree_attention.tune

times the implementation that would serve here, prints a table and saves the best sizes, which later
processes use, see `config.block`. Another size adds in another order, so the last bits change.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from rich.console import Console
from rich.table import Table

from specjax import checks, command_line
from specjax.kernels.platform import device
from specjax.kernels.tree_attention import measured
from specjax.kernels.tree_attention.api import default_implementation, tree_attention
from specjax.kernels.tree_attention.config import AttentionShape, sizes
from specjax.sampling import new_key

ON_CPU = jax.default_backend() == "cpu"
SHARES = (1 / 16, 1 / 2, 1)  # how much of the capacity is seen; the mean of the times counts
Seconds = dict[int, float]  # seconds of a call, by cached rows per block


@dataclasses.dataclass(frozen=True)
class Config:
  """The calls that are timed.

  Attributes:
    capacity: values of S; each is measured.
    heads, kv_heads, width, dtype, batch, nodes: H, K, C, the dtype of the cache, B, N.
    calls: calls in one timing, one after the other on the device.
    repeats: timings, of which the shortest counts.
  """

  capacity: tuple[int, ...] = (1024, 2048, 4096, 8192)
  heads: int = 8 if ON_CPU else 32
  kv_heads: int = 2 if ON_CPU else 8
  width: int = 64 if ON_CPU else 128
  dtype: str = "float32" if ON_CPU else "bfloat16"
  batch: int = 1
  nodes: int = 8
  calls: int = 4
  repeats: int = 15


def draw(config: Config, capacity: int, length: int) -> tuple[Array, ...]:
  """Arguments of `tree_attention`: a chain after `length` rows."""
  B, H, K, N, C = config.batch, config.heads, config.kv_heads, config.nodes, config.width
  keys = iter(jax.random.split(new_key(0), 5))
  shapes = ((B, H, N, C), (B, K, capacity, C), (B, K, capacity, C), (B, K, N, C), (B, K, N, C))
  q, k, v, k_tree, v_tree = (jax.random.normal(next(keys), s, config.dtype) for s in shapes)
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((N, N), bool)), (B, N, N))
  return q, k, v, jnp.full(B, length, jnp.int32), k_tree, v_tree, mask


def timed(f: Callable[..., Array], arguments: tuple, calls: int) -> Callable[[], float]:
  """A function that times `calls` calls in sequence on the device; it returns seconds per call."""

  @jax.jit
  def run(x, *rest):
    return jax.lax.fori_loop(0, calls, lambda _, x: x + 0 * f(x, *rest), x)

  jax.block_until_ready(run(*arguments))

  def once() -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return (time.perf_counter() - start) / calls

  return once


def measure(config: Config, implementation: str, capacity: int, tried: Sequence[int]) -> Seconds:
  """Seconds of a call by block size; sizes take turns, so that a slow moment slows all of them."""
  mean = dict.fromkeys(tried, 1.0)
  attention = functools.partial(tree_attention, implementation=implementation)
  for share in SHARES:
    arguments = draw(config, capacity, int(share * capacity))
    ways = {
      size: timed(functools.partial(attention, block=size), arguments, config.calls)
      for size in tried
    }
    turns = [{size: once() for size, once in ways.items()} for _ in range(config.repeats)]
    for size in tried:
      mean[size] *= min(turn[size] for turn in turns) ** (1 / len(SHARES))
  return mean


def main(config: Config, measure: Callable[[Config, str, int, Sequence[int]], Seconds] = measure):
  """Measures block sizes, prints a table and saves the best; ValueError for bad sizes."""
  for name, value in dataclasses.asdict(config).items():
    for each in value if name == "capacity" else () if name == "dtype" else (value,):
      checks.whole(name, each, 1)
  checks.choice("dtype", config.dtype, ("float32", "bfloat16", "float16"))
  if config.heads % config.kv_heads:
    checks.refuse("heads", config.heads, f"a multiple of kv_heads={config.kv_heads}")
  kind, best = device().device_kind, {}
  table = Table("cached", "rows per block: microseconds", "guess", "best", title=kind)
  for capacity in config.capacity:
    q, k, _, length, *_ = jax.eval_shape(functools.partial(draw, config, capacity, capacity))
    implementation = default_implementation(q, k, length)
    if implementation == "cpu":  # which has no such blocks, and leaves calls to XLA
      implementation = "xla"
    shape = AttentionShape.of(q, k)
    tried = sizes(implementation, shape)
    taken = measure(config, implementation, capacity, tried)
    size = best[shape.of_class(implementation)] = min(taken, key=taken.__getitem__)
    listed = ", ".join(f"{each}: {1e6 * taken[each]:.0f}" for each in sorted(taken))
    table.add_row(str(capacity), listed, str(tried[0]), str(size))
  Console(width=100).print(table)
  measured.save(measured.path(), kind, best)
  print(f"saved to {measured.path()}")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
