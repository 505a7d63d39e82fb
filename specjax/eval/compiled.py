"""Programs compiled for absent chips: what they hold, what they say to each other, all layers.

To compile all layers takes long. They are alike, so that from two numbers of layers follows the
whole model.
"""

import collections
import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from specjax.kernels import topology

_KINDS = "all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"


def placed(tree: Any, places: Any) -> Any:
  """The shapes of `tree` with their shardings, one or a tree of them."""
  if isinstance(places, NamedSharding):
    places = jax.tree.map(lambda _: places, tree)
  return jax.tree.map(lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), tree, places)


def share(tree: Any, chips: int) -> int:
  """Bytes of each chip if it has exactly its share of these arrays."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)) // chips


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
  said, hidden = talk(text), overlapped(text)
  return {
    "argument_bytes": memory.argument_size_in_bytes,
    "temp_bytes": memory.temp_size_in_bytes,
    "collectives": dict(collections.Counter(kind for kind, _ in said)),
    "talk_bytes": sum(said.values()),
    "overlapped": dict(collections.Counter(kind for kind, _ in hidden)),
    "overlapped_bytes": sum(said[one] for one in hidden),
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


# A computation of a program; and of one of its lines the name, the type of the result, which may be
# a tuple of tuples of tiled arrays, the kind of the operation, and the operands with what follows.
_PART = re.compile(r"^(ENTRY )?%?([\w.-]+) [^\n]*-> [^\n]*\{\n(.*?)^\}", re.M | re.S)
_LINE = re.compile(
  r"^ +(?:ROOT )?%?([\w.-]+) = (\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\S+) ([\w-]+)\((.*)$", re.M
)
_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?")
_FREE = {
  "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
  "replica-id", "opt-barrier",
}  # fmt: skip
_SLICES = "slice", "dynamic-slice", "gather"


def _bytes(kind: str, without: str = "none") -> int:
  """Bytes of the arrays of a type, `without` those whose layout has this in it."""
  return sum(
    math.prod(map(int, filter(None, sizes.split(",")))) * int(bits or 8) // 8
    for bits, sizes, layout in _ARRAY.findall(kind)
    if without not in layout
  )


def _in_memory(kind: str) -> int:
  """Bytes of the arrays of a type that are in a chip's memory, and not in its fast one, S(1)."""
  return _bytes(kind, "S(1)")


def _operands(rest: str) -> list[str]:
  return re.findall(r"%([\w.-]+)", rest.split("), ")[0])


def _parts(text: str) -> dict[str, list[tuple[str, str, str, str]]]:
  return {name: _LINE.findall(body) for _, name, body in _PART.findall(text)}


Talk = tuple[str, str]
"""A collective: its kind, such as "all-reduce", and its channel. A TPU may send it in steps."""


def _talk(operation: str, rest: str) -> Talk | None:
  kind, channel = operation.removesuffix("-start"), re.search(r"channel_id=(\d+)", rest)
  return (kind, channel[1]) if kind in _KINDS and channel else None


def talk(text: str) -> dict[Talk, int]:
  """The bytes that a chip has from each collective of a program; those of a loop count once."""
  lines = [line for part in _parts(text).values() for line in part]
  ends = {
    name: _bytes(kind)
    for _, kind, operation, rest in lines
    if operation.endswith("-done")
    for name in _operands(rest)
  }
  found = [(_talk(operation, rest), own, kind) for own, kind, operation, rest in lines]
  return {one: ends.get(own, _bytes(kind)) for one, own, kind in found if one}


_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=(\{[^}]*\}|%?[\w.-]+)")
_LIBRARY = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|mosaic|tpu_custom_call)')


def overlapped(text: str) -> set[Talk]:
  """The collectives of a scheduled program that are under way while the chip multiplies.

  A product stands between start and end of such a one, or in one fusion with a step of it; it is of
  matrices or a kernel, by itself or within a fusion, a loop or a branch.
  """
  parts = _parts(text)

  @functools.cache
  def multiplies(operation: str, rest: str) -> bool:
    if operation == "custom-call":
      return bool(_LIBRARY.search(rest))
    names = [x for called in _CALLED.findall(rest) for x in re.findall(r"[\w.-]+", called)]
    within = (x[2:] for name in names for x in parts.get(name, ()))
    return operation in ("dot", "convolution") or any(multiplies(*x) for x in within)

  found = set[Talk]()
  for lines in parts.values():
    begun: dict[str, Talk] = {}
    for own, _, operation, rest in lines:
      one = _talk(operation, rest)
      if one and operation.endswith("-start"):
        begun[own] = one
      elif operation.endswith("-done"):
        for name in _operands(rest):
          begun.pop(name, None)
      elif multiplies(operation, rest):
        found.update(begun.values())
        begun.clear()
  for name in _fused(parts):
    if any(multiplies(*x[2:]) for x in parts[name]):
      found.update(one for x in parts[name] if (one := _talk(*x[2:])))
  return found


def _fused(parts: Any) -> set[str]:
  """The computations that are fusions."""
  return {
    called
    for lines in parts.values()
    for _, _, operation, rest in lines
    if operation == "fusion"
    for called in re.findall(r"calls=%?([\w.-]+)", rest)
  }


def accessed(text: str) -> int:
  """Bytes of memory that a compiled program reads and writes.

  Each operation reads its operands and writes its results; of an operand that a fusion slices,
  the slices count. A loop counts as often as the compiler knows that it runs, else once. The
  workspace of a library's call does not count.
  """
  parts = {name: (bool(entry), _LINE.findall(body)) for entry, name, body in _PART.findall(text)}

  def taken(rest: str, at: int, whole: int) -> int:
    """What a fusion reads of operand number `at`, of so many bytes."""
    called = re.search(r"calls=%?([\w.-]+)", rest)
    lines = parts[called[1]][1] if called else []
    (own,) = [x for x, _, op, args in lines if (op, args.split(")")[0]) == ("parameter", str(at))]
    total = 0
    for _, kind, operation, args in lines:
      if own in (operands := _operands(args)):
        sliced = operation in _SLICES and operands.index(own) == 0
        total += _in_memory(kind) if sliced else whole
    return min(total, whole)

  def within(name: str) -> int:
    total, sizes = 0, {}
    for own, kind, operation, rest in parts[name][1]:
      if operation == "custom-call":
        kind = re.sub(r"\bs8\[\d+\]", "", kind)
      sizes[own] = _in_memory(kind)
      called = re.search(r"(?:to_apply|body)=%?([\w.-]+)", rest)
      if operation in ("while", "call") and called:
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
        total += within(called[1]) * (int(known[1]) if known else 1)
      elif operation not in _FREE:
        operands = {x: (i, sizes.get(x, 0)) for i, x in enumerate(_operands(rest))}
        if operation == "fusion":
          total += sum(taken(rest, *x) for x in operands.values())
        elif not operation.endswith("-done"):
          total += sum(size for _, size in operands.values())
        total += 0 if operation.endswith("-start") else sizes[own]
    return total

  return sum(within(name) for name, (entry, _) in parts.items() if entry)


def _written(text: str) -> list[str]:
  """The types of what the operations of a program write; what stays within a fusion is not."""
  parts = _parts(text)
  fused = _fused(parts)
  return [
    kind
    for name in parts.keys() - fused
    for _, kind, operation, _ in parts[name]
    if operation not in _FREE | {"while", "conditional", "call"}
  ]


def written(text: str, dtype: str, numbers: int) -> int:
  """How many operations of a program write arrays of a dtype such as "f32" that have at least so
  many `numbers`."""
  arrays = [re.findall(rf"\b{dtype}\[([\d,]+)\]", kind) for kind in _written(text)]
  sizes = [[math.prod(map(int, x.split(","))) for x in found] for found in arrays]
  return sum(max(found, default=0) >= numbers for found in sizes)


def largest(text: str) -> str:
  """The type of the largest array that a program writes, such as "f32[8,1024]"; "" where none."""
  arrays = (x[0].split("{")[0] for kind in _written(text) for x in _ARRAY.finditer(kind))
  return max(arrays, key=_bytes, default="")


def check_layers(layers: Sequence[int]) -> None:
  """Raises ValueError for numbers of layers that do not rise from 1 on."""
  if list(layers) != sorted({*layers}) or min(layers, default=1) < 1:
    raise ValueError(f"`layers` must be rising numbers of at least 1, got {tuple(layers)}.")


def by_layers(
  compiled_for: Callable[[int], dict[str, Any]], layers: Sequence[int], total: int
) -> list[dict[str, Any]]:
  """The cells of these numbers of layers, or of `total`; where there are several, then the whole.

  A cell has "topology", "layers", "ideal_bytes", which is a `share`, and what `found` says; every
  number that grows with the layers ends in _bytes or _copies.
  """
  cells = [compiled_for(n) for n in layers or (total,)]
  if len(cells) > 1:
    cells.append(_whole(cells[-2], cells[-1], total))
  for cell in cells:
    held = cell["argument_bytes"] + cell["temp_bytes"]
    cell["over_ideal"] = round(held / cell["ideal_bytes"], 3)
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
    key: {kind: further(few[key].get(kind, 0), n) for kind, n in more[key].items()}
    for key in ("collectives", "overlapped")
  }
  return more | grown | talk | {"layers": total, "seconds": None}


def row(cell: dict[str, Any]) -> dict[str, Any]:
  """A line of a table, with bytes in GB."""
  return {
    key.replace("_bytes", " GB"): f"{x / 1e9:.2f}" if key.endswith("_bytes") else x
    for key, x in cell.items()
  }
