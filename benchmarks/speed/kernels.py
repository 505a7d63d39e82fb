r"""Tree attention over a long cache, compared with the bandwidth of the memory.

    python benchmarks/speed/kernels.py

For each number of nodes three ways are timed in turns: the kernel that serves here (else XLA in
blocks), one dense product over the whole capacity in XLA, and `jax.nn.dot_product_attention`, which
gets the tree inside its cache in the layout that it needs, at no cost. A call must at least move
the keys and values that are seen; these bytes per second are compared with those of a copy. The
break-even is the number of nodes at which a call takes twice the time of one node; below it, most
of a call is the reading of the cache. On CPU the shapes are smaller.
"""

import dataclasses
import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from specjax import script
from specjax.eval import report, table
from specjax.eval.plots import style
from specjax.kernels.tree_attention import default_implementation, refusals, tree_attention, tune
from specjax.models.attention import attend

ON_CPU = jax.default_backend() == "cpu"
WAYS = {  # label and colour of each
  "kernel": ("specjax, tree_attention", style.COLOURS[0]),
  "dense": ("one product", style.PLAIN),
  "dot_product_attention": ("jax.nn.dot_product_attention", style.COLOURS[1]),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  heads: int = 8 if ON_CPU else 32  # H, number of query heads
  kv_heads: int = 2 if ON_CPU else 8  # K, number of key and value heads
  width: int = 64 if ON_CPU else 128  # C, width of a head
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the cache
  capacity: int = 4096 if ON_CPU else 8192  # S, capacity of the cache
  # numbers of cached rows that are seen
  lengths: tuple[int, ...] = (256, 4096) if ON_CPU else (1024, 8192)
  batch: tuple[int, ...] = (1,) if ON_CPU else (1, 8)  # values of B, the batch
  nodes: tuple[int, ...] = (1, 4, 16, 64)  # values of N, the nodes of a tree
  # number of calls in one timing, one after the other on the device
  calls: int = 4 if ON_CPU else 32
  repeats: int = 9  # timings; their median counts
  out: str = "results/kernels"  # directory of the report


def dense(q, k, v, length, k_tree, v_tree, mask) -> Array:
  """One product with the whole capacity, one with the tree: what `attend` does for a window."""
  (B, H, N, C), S = q.shape, k.shape[2]
  visible = jnp.broadcast_to(jnp.arange(S)[None, None] < length[:, None, None], (B, N, S))
  out = attend(q, k_tree, v_tree, mask, (k, v, visible))
  return out.reshape(B, N, H, C).swapaxes(1, 2)


def jax_nn(q, k, v, length, k_tree, v_tree, mask) -> Array:
  """`jax.nn.dot_product_attention`, as if the tree were the cache's last rows."""
  B, N = q.shape[0], q.shape[2]
  S = k.shape[1]
  seen = jnp.broadcast_to(jnp.arange(S - N)[None, None] < length[:, None, None], (B, N, S - N))
  seen = jnp.concatenate([seen, mask], 2)[:, None]
  return jax.nn.dot_product_attention(q.swapaxes(1, 2), k, v, mask=seen).swapaxes(1, 2)


def measure(config: Config, B: int, N: int, length: int) -> dict:
  """Seconds of each way, and of a copy of the bytes that are seen."""
  shape = tune.Config(heads=config.heads, kv_heads=config.kv_heads, width=config.width,
                      dtype=config.dtype, batch=B, nodes=N)  # fmt: skip
  arguments = tune.draw(shape, config.capacity, length)
  q, k, v, lengths = arguments[:4]
  of_rows = [x.swapaxes(1, 2) for x in (k, v)]
  reasons = refusals(q, k, lengths)
  kernels = [name for name, reason in reasons.items() if reason is None]
  implementation = kernels[0] if kernels else default_implementation(q, k, lengths)
  kernel = functools.partial(tree_attention, implementation=implementation)
  moved = 2 * B * config.kv_heads * length * config.width * k.dtype.itemsize
  ways = {
    "copy": tune.timed(lambda x: x + 1, (jnp.zeros(moved // 8, jnp.float32),), config.calls),
    "kernel": tune.timed(kernel, arguments, config.calls),
    "dense": tune.timed(dense, arguments, config.calls),
    "dot_product_attention": tune.timed(jax_nn, (q, *of_rows, *arguments[3:]), config.calls),
  }
  turns = [{name: once() for name, once in ways.items()} for _ in range(config.repeats)]
  median = {name: float(np.median([turn[name] for turn in turns])) for name in ways}
  copy = moved / median.pop("copy")
  return {
    "batch": B, "nodes": N, "length": length, "bytes": moved, "copy_bytes_per_second": copy,
    "implementation": implementation, "refusals": reasons, "seconds": median,
    "share_of_copy": {name: moved / each / copy for name, each in median.items()},
  }  # fmt: skip


def break_even(rows: list[dict], name: str) -> float | None:
  """Nodes at which a call costs twice one node's, between those measured; None if never."""
  nodes = [row["nodes"] for row in rows]
  cost = [row["seconds"][name] / rows[0]["seconds"][name] for row in rows]
  if cost[-1] < 2:
    return None
  return float(np.interp(2, np.maximum.accumulate(cost), nodes))


def picture(groups: dict[tuple[int, int], list[dict]], capacity: int) -> Figure:
  """Time over nodes, a panel for each batch size and length."""
  figure, panels = style.panels(4 * len(groups) + 2.6, 3.6, len(groups), shared=True)
  for axes, ((B, length), cells) in zip(panels, groups.items(), strict=True):
    nodes = [cell["nodes"] for cell in cells]
    for name, (label, colour) in WAYS.items():
      each = [1e6 * cell["seconds"][name] for cell in cells]
      axes.plot(nodes, each, "o-", color=colour, label=label, markersize=4)
    copy = [1e6 * cell["bytes"] / cell["copy_bytes_per_second"] for cell in cells]
    axes.plot(nodes, copy, ":", color=style.INK, label="a copy of the rows seen")
    axes.set(yscale="log", xlabel="nodes")
    style.powers(axes, nodes)
    axes.set_title(f"batch {B}: {length} of {capacity} rows seen", loc="left", fontsize=11)
  panels[0].set_ylabel("microseconds a call")
  style.legend(panels[-1])
  return figure


def main(config: Config) -> None:
  report.check(config, "nodes", "batch", "lengths", "calls", "repeats")
  report.directory(config.out)
  groups = {
    (B, length): [measure(config, B, N, length) for N in config.nodes]
    for B, length in itertools.product(config.batch, config.lengths)
  }
  cells = [cell for group in groups.values() for cell in group]
  even = {
    f"batch {B}, {length} rows seen": {name: break_even(group, name) for name in WAYS}
    for (B, length), group in groups.items()
  }
  last = groups[config.batch[0], config.lengths[0]][-1]
  rows = [
    {
      "batch": cell["batch"], "seen": cell["length"], "nodes": cell["nodes"],
      "MB": f"{cell['bytes'] / 1e6:.2f}", "copy GB/s": f"{cell['copy_bytes_per_second'] / 1e9:.1f}",
      "way": name, "us": f"{1e6 * each:.0f}", "GB/s": f"{cell['bytes'] / each / 1e9:.1f}",
      "of copy": f"{cell['share_of_copy'][name]:.0%}",
    }
    for cell in cells for name, each in cell["seconds"].items()
  ]  # fmt: skip
  lines = [table.markdown(rows), "", f"- kernel: {last['implementation']}"]
  lines += [f"- {name}: {reason or 'serves'}" for name, reason in last["refusals"].items()]
  for where, each in even.items():
    nodes = ", ".join(f"{k} {'never' if v is None else round(v)}" for k, v in each.items())
    lines.append(f"- break-even nodes, {where}: {nodes}")
  plots = {"kernels": picture(groups, config.capacity)}
  report.publish(config, {"rows": cells, "break_even": even}, "\n".join(lines), plots)


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__))
