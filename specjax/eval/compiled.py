"""Programs compiled for absent chips: what they hold, what they say to each other, all layers.

To compile all layers takes long. They are alike, so that from two numbers of layers follows the
whole model.
"""

import collections
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from specjax.kernels import topology

_TALK = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


def placed(tree: Any, places: Any) -> Any:
  """The shapes of `tree` with their shardings, one or a tree of them."""
  if isinstance(places, NamedSharding):
    places = jax.tree.map(lambda _: places, tree)
  return jax.tree.map(lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), tree, places)


def found(lowered: Any) -> tuple[dict[str, Any], str]:
  """(what compiling tells, by chip: bytes, collectives by kind and seconds; the program's text)."""
  kept = jax.config.values["jax_enable_compilation_cache"]
  jax.config.update("jax_enable_compilation_cache", False)  # seconds are the compiler's
  try:
    begin = time.perf_counter()
    compiled = lowered.compile()
    seconds = round(time.perf_counter() - begin, 1)
  finally:
    jax.config.update("jax_enable_compilation_cache", kept)
  memory, text = compiled.memory_analysis(), compiled.as_text() or ""
  return {
    "argument_bytes": memory.argument_size_in_bytes,
    "temp_bytes": memory.temp_size_in_bytes,
    "collectives": dict(collections.Counter(re.findall(_TALK, text))),
    "seconds": seconds,
  }, text


def copies(text: str, shape: str, kinds: str = "copy|custom-call") -> int:
  """How often a program copies an array of a `shape`, a pattern such as "8,2,1056,128".

  `kinds` are the operations that do so; a copy in pieces ends in a custom call that joins them.
  What a TPU brings into its faster memory, S(1), and back is no copy.
  """
  array = rf"\w+\[{shape}\]\S*"
  found = re.findall(rf"= ({array}) (?:{kinds})\(", text)
  found += re.findall(rf"= \(({array} {array}) .*copy-start\(", text)
  return sum("S(1)" not in places for places in found)


def check_layers(layers: Sequence[int]) -> None:
  """Raises ValueError for numbers of layers that do not rise from 1 on."""
  if list(layers) != sorted({*layers}) or min(layers, default=1) < 1:
    raise ValueError(f"`layers` must be rising numbers of at least 1, got {tuple(layers)}.")


def by_layers(
  compiled_for: Callable[[int], dict[str, Any]], layers: Sequence[int], total: int
) -> list[dict[str, Any]]:
  """The cells of these numbers of layers, or of `total`; where there are several, then the whole.

  A cell has "topology", "layers" and what `found` says; every number that grows with the layers
  ends in _bytes or _copies.
  """
  cells = [compiled_for(n) for n in layers or (total,)]
  if len(cells) > 1:
    cells.append(_whole(cells[-2], cells[-1], total))
  for cell in cells:
    held = cell["argument_bytes"] + cell["temp_bytes"]
    cell["of_memory"] = round(held / topology.CHIPS[cell["topology"]].gigabytes / 1e9, 3)
  return cells


def _whole(few: dict[str, Any], more: dict[str, Any], total: int) -> dict[str, Any]:
  """What follows for `total` layers from two cells."""
  steps = (total - more["layers"]) / (more["layers"] - few["layers"])

  def further(a: int, b: int) -> int:
    return round(b + steps * (b - a))

  grown = {
    key: further(few[key], x) for key, x in more.items() if key.endswith(("_bytes", "_copies"))
  }
  # A compiler's choice may take a little less for more layers, which is no trend.
  grown["temp_bytes"] = max(grown["temp_bytes"], more["temp_bytes"])
  talk = {
    kind: further(few["collectives"].get(kind, 0), n) for kind, n in more["collectives"].items()
  }
  return more | grown | {"layers": total, "collectives": talk, "seconds": None}


def row(cell: dict[str, Any]) -> dict[str, Any]:
  """A line of a table, with bytes in GB."""
  return {
    key.replace("_bytes", " GB"): f"{x / 1e9:.2f}" if key.endswith("_bytes") else x
    for key, x in cell.items()
  }
