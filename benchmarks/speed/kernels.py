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
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from specjax import checks, command_line
from specjax.eval import report, table
from specjax.eval.plots import style
from specjax.kernels.tree_attention import default_implementation, refusals, tree_attention, tune
from specjax.models.attention import attend

ON_CPU = jax.default_backend() == "cpu"
WAYS = {  # label and colour of each
  "kernel": ("specjax, tree_attention", style.COLOURS[0]),
  "dense": ("XLA's one product", style.PLAIN),
  "dot_product_attention": ("jax.nn.dot_product_attention", style.COLOURS[1]),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What is measured."""

  heads: int = 8 if ON_CPU else 32  # H, number of query heads
  kv_heads: int = 2 if ON_CPU else 8  # K, number of key and value heads
  width: int = 64 if ON_CPU else 128  # C, width of a head
  dtype: str = "float32" if ON_CPU else "bfloat16"  # dtype of the cache
  # S, capacity of the cache; 0 for as many rows as are seen
  capacity: int = 4096 if ON_CPU else 8192
  # numbers of cached rows that are seen
  lengths: tuple[int, ...] = (256, 4096) if ON_CPU else (1024, 8192)
  batch: tuple[int, ...] = (1,) if ON_CPU else (1, 8)  # values of B, the batch
  nodes: tuple[int, ...] = (1, 4, 16, 64)  # values of N, the nodes of a tree
  ways: tuple[str, ...] = tuple(WAYS)  # what is timed beside a copy
  most: int = 2**19  # cached rows of a batch; larger cells are left out
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
  shape = tune.Config(
    heads=config.heads,
    kv_heads=config.kv_heads,
    width=config.width,
    dtype=config.dtype,
    batch=B,
    nodes=N,
  )
  arguments = tune.draw(shape, config.capacity or length, length)
  q, k, v, lengths = arguments[:4]
  reasons = refusals(q, k, lengths)
  kernels = [name for name, reason in reasons.items() if reason is None]
  implementation = kernels[0] if kernels else default_implementation(q, k, lengths)
  kernel = functools.partial(tree_attention, implementation=implementation)
  moved = 2 * B * config.kv_heads * length * config.width * k.dtype.itemsize
  loops = {"copy": tune.timed(lambda x: x + 1, (jnp.zeros(moved // 8, jnp.float32),), config.calls)}
  for name in config.ways:
    way = {"kernel": kernel, "dense": dense, "dot_product_attention": jax_nn}[name]
    given = arguments
    if way is jax_nn:
      given = (q, k.swapaxes(1, 2), v.swapaxes(1, 2), *arguments[3:])
    loops[name] = tune.timed(way, given, config.calls)
  turns = [{name: once() for name, once in loops.items()} for _ in range(config.repeats)]
  median = {name: float(np.median([turn[name] for turn in turns])) for name in loops}
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
  groups = {where: cells for where, cells in groups.items() if cells}
  columns = min(3, len(groups))
  high = -(-len(groups) // columns)
  figure, panels = style.panels(9, 2.6 * high + 0.5, columns, high, shared=True)
  for axes, ((B, length), cells) in zip(panels, groups.items(), strict=False):
    nodes = [cell["nodes"] for cell in cells]
    for name in cells[0]["seconds"]:
      label, colour = WAYS[name]
      each = [1e6 * cell["seconds"][name] for cell in cells]
      axes.plot(nodes, each, "o-", color=colour, label=label, markersize=4)
    copy = [1e6 * cell["bytes"] / cell["copy_bytes_per_second"] for cell in cells]
    axes.plot(nodes, copy, ":", color=style.INK, label="a copy of the rows seen")
    axes.set(yscale="log")
    style.powers(axes, nodes)
    rows = f"{length} rows" if capacity in (0, length) else f"{length} of {capacity} rows"
    axes.set_title(f"batch {B}, {rows}", loc="left", fontsize=11)
  for axes in panels[len(groups) :]:
    axes.set_visible(False)
  figure.supylabel("microseconds a call", fontsize=11)
  figure.supxlabel("nodes", fontsize=11)
  handles, labels = panels[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=10)
  return figure


def text(groups: dict[tuple[int, int], list[dict]], even: dict, failures: list[str]) -> str:
  """Every timing, who served and why not others, the break-even and what failed."""
  cells = [cell for group in groups.values() for cell in group]
  rows = [
    {
      "batch": cell["batch"],
      "seen": cell["length"],
      "nodes": cell["nodes"],
      "MB": f"{cell['bytes'] / 1e6:.2f}",
      "copy GB/s": f"{cell['copy_bytes_per_second'] / 1e9:.1f}",
      "way": name,
      "us": f"{1e6 * each:.0f}",
      "GB/s": f"{cell['bytes'] / each / 1e9:.1f}",
      "of copy": f"{cell['share_of_copy'][name]:.0%}",
    }
    for cell in cells
    for name, each in cell["seconds"].items()
  ]
  lines = [table.markdown(rows), ""]
  if cells:
    first = max(groups.values(), key=bool)[-1]
    lines.append(f"- kernel: {first['implementation']}")
    lines += [f"- {name}: {reason or 'serves'}" for name, reason in first["refusals"].items()]
  for where, each in even.items():
    nodes = ", ".join(f"{k} {'never' if v is None else round(v)}" for k, v in each.items())
    lines.append(f"- break-even nodes, {where}: {nodes}")
  return "\n".join([*lines, *(f"- failed: {failure}" for failure in failures)])


def main(config: Config) -> None:
  report.check(config, "nodes", "batch", "lengths", "calls", "repeats", "most")
  for name in config.ways:
    checks.choice("ways", name, WAYS)
  groups: dict[tuple[int, int], list[dict]] = {}
  failures: list[str] = []
  where = [
    pair
    for pair in itertools.product(config.batch, config.lengths)
    if math.prod(pair) <= config.most
  ]
  if not where:
    least = min(config.batch) * min(config.lengths)
    checks.refuse("most", config.most, f"at least {least}, the rows of the smallest cell")
  out = report.directory(config.out)
  for (B, length), N in report.progress(list(itertools.product(where, config.nodes)), "measuring"):
    group = groups.setdefault((B, length), [])
    try:
      group.append(measure(config, B, N, length))
    except Exception as error:  # for want of memory, or by any fault of a kernel or its compiler
      failures.append(f"batch {B}, {length} rows, {N} nodes: {command_line.sentence(error)[:300]}")
    even = {
      f"batch {b}, {seen} rows seen": {name: break_even(each, name) for name in config.ways}
      for (b, seen), each in groups.items()
      if each
    }
    cells = [cell for each in groups.values() for cell in each]
    found = {"rows": cells, "break_even": even, "failures": failures}
    report.save(out, report.summary(config, found), text(groups, even, failures))
  plots = {"kernels": picture(groups, config.capacity)} if any(groups.values()) else {}
  report.publish(config, found, text(groups, even, failures), plots)
  if failures:
    raise ValueError(f"{len(failures)} cells failed, see {config.out}/table.md.")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
