"""Tree attention on this machine against its definition, by every implementation that serves here.

    python benchmarks/claims/attention.py

The definition is one softmax in float32 products of the highest precision. An implementation passes
in a cell where each of its outputs is within `tolerance` times the largest magnitude of the
definition's outputs; bfloat16 rounds to 0.004. Rows of the cache past the text are NaN. The command
fails after its report where a cell does.
"""

import dataclasses
import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, command_line
from specjax.eval import report, table
from specjax.kernels.tree_attention import quantise, refusals, tree_attention, tune


@dataclasses.dataclass(frozen=True)
class Config:
  """What is compared."""

  nodes: tuple[int, ...] = (1, 16, 256)  # values of N, the nodes of a tree
  widths: tuple[int, ...] = (128,)  # values of C, the width of a head
  groups: tuple[int, ...] = (4, 7)  # values of H / K, query heads that share a key head
  capacity: tuple[int, ...] = (104, 5000)  # values of S
  dtypes: tuple[str, ...] = ("bfloat16", "float32")  # of nodes and cache
  int8: tuple[bool, ...] = (False, True)  # whether the cache is in 8 bits
  local: tuple[bool, ...] = (False, True)  # whether there are a window of 100, a cap and sinks
  batch: int = 3  # B, texts of different lengths
  tolerance: float = 0.01  # error that is accepted, as a share of the largest magnitude
  out: str = "results/attention"  # directory of the report


def arguments(B: int, int8: bool, dtype: str, N: int, C: int, G: int, S: int) -> tuple:
  """Random arguments of `tree_attention`: the texts are whole, a row short, and a third."""
  shape = tune.Config(heads=2 * G, kv_heads=2, width=C, dtype=dtype, batch=B, nodes=N)
  q, k, v, _, *tree = tune.draw(shape, S, S)
  length = jnp.asarray([(S, S - 1, S // 3)[b % 3] for b in range(B)], jnp.int32)
  seen = (jnp.arange(S, dtype=jnp.int32)[None] < length[:, None])[:, None, :, None]
  k, v = (jnp.where(seen, x, jnp.nan) for x in (k, v))
  k, v = (quantise(jnp.where(seen, x, 0)) if int8 else x for x in (k, v))
  return q, k, v, length, *tree


def compare(
  config: Config, local: bool, int8: bool, dtype: str, N: int, C: int, G: int, S: int
) -> list[dict]:
  """A cell for every implementation: its error, or why there is none."""
  given = arguments(config.batch, int8, dtype, N, C, G, S)
  start, sinks, attention = None, None, tree_attention
  if local:
    start = given[3][:, None] + jnp.arange(N, dtype=jnp.int32)[None] - 99
    sinks = jnp.linspace(-1, 1, 2 * G)
    attention = functools.partial(tree_attention, start=start, cap=2.0, sinks=sinks)
  with jax.default_matmul_precision("highest"):
    exact = functools.partial(attention, implementation="reference")
    wanted = np.asarray(jax.jit(exact)(*given), np.float64)
  scale = np.abs(wanted).max()
  cells = []
  reasons = refusals(given[0], given[1], given[3], start, sinks)
  for name, refusal in {"xla": None, **reasons}.items():
    cell = {"implementation": name, "nodes": N, "width": C, "group": G, "capacity": S,
            "dtype": dtype, "int8": int8, "local": local, "refusal": refusal,
            "error": None}  # fmt: skip
    cells.append(cell)
    if refusal is None:
      try:
        found = jax.jit(functools.partial(attention, implementation=name))(*given)
        cell["error"] = float(np.abs(np.asarray(found, np.float64) - wanted).max() / scale)
      except Exception as error:  # a compiler may raise anything, and the other cells are wanted
        cell["failure"] = command_line.sentence(error)[:300]
  return cells


def failed(cell: dict, tolerance: float) -> bool:
  """Whether a cell that is served has no error, or one that is too large or NaN."""
  served = cell["refusal"] is None
  return served and ("failure" in cell or not cell["error"] <= tolerance)


def text(cells: list[dict], tolerance: float) -> str:
  """A row for each implementation and dtype, then what failed and what is refused."""
  rows, names = [], list(dict.fromkeys((c["implementation"], c["dtype"]) for c in cells))
  for name, dtype in names:
    own = [c for c in cells if (c["implementation"], c["dtype"]) == (name, dtype)]
    errors = [c["error"] for c in own if c["error"] is not None]
    rows.append(
      {
        "implementation": name,
        "dtype": dtype,
        "shapes": len(own),
        "refused": sum(c["refusal"] is not None for c in own),
        "failed": sum(failed(c, tolerance) for c in own),
        "largest error": f"{np.max(errors):.1e}" if errors else "",
      }
    )
  lines = [table.markdown(rows), "", f"Accepted is an error of {tolerance:g}.", ""]
  bad = [{k: v for k, v in c.items() if k != "refusal"} for c in cells if failed(c, tolerance)]
  lines += [f"- failed: {cell}" for cell in bad[:20]]
  reasons = dict.fromkeys((c["implementation"], c["refusal"]) for c in cells if c["refusal"])
  return "\n".join([*lines, *(f"- {name} refuses: {reason}" for name, reason in reasons)])


def main(config: Config) -> None:
  report.check(config, "nodes", "widths", "groups", "capacity", "batch")
  for dtype in config.dtypes:
    checks.choice("dtypes", dtype, ("bfloat16", "float16", "float32"))
  out = report.directory(config.out)
  shapes = list(
    itertools.product(
      config.local,
      config.int8,
      config.dtypes,
      config.nodes,
      config.widths,
      config.groups,
      config.capacity,
    )
  )
  cells: list[dict] = []
  for shape in report.progress(shapes, "comparing"):
    cells += compare(config, *shape)
    report.save(out, report.summary(config, {"cells": cells}), text(cells, config.tolerance))
  report.publish(config, {"cells": cells}, text(cells, config.tolerance))
  bad = sum(failed(cell, config.tolerance) for cell in cells)
  if bad:
    raise ValueError(f"{bad} of {len(cells)} cells failed, see {config.out}/table.md.")


if __name__ == "__main__":
  sys.exit(command_line.run(main, Config, __doc__))
