"""The weights of a Hugging Face directory, in floats, in 8 bits of ours, or in others' few bits."""

import functools
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import eight_bits, few_bits, quantised, stored
from specjax.checkpoints.few_bits import Few
from specjax.checkpoints.hf_layout import Fusion, Layout, Read, Stack, assemble, joined
from specjax.checkpoints.stored import Stored
from specjax.models.groups import Groups, has_groups
from specjax.models.sharding import apart
from specjax.models.weights import Matrix, parameter

_FLOATS = ("F32", "F16", "BF16")


def read(
  directory: pathlib.Path,
  raw: Mapping[str, Any],
  table: Layout,
  spare: frozenset[str],
  dtype: DTypeLike,
  weights: str,
  mesh: Mesh | None,
) -> Params:
  """The parameters of a layout; `raw` is config.json, and the rest as of `hf_layout.assemble`.

  It raises ValueError where files or tensors are absent, damaged, misshapen or of another kind, and
  for "native" where no matrix can be held.
  """
  home = stored.of_directory(directory)
  few = quantised.find(home, raw, directory)
  made_of = {name for each in few.values() for name in each.files}
  # Of a model that "native" holds, and of one whose matrices are rounded later, values are exact.
  wide = dtype if weights == "float" else jnp.float32

  @functools.lru_cache(maxsize=1)  # parts of one tensor are asked for one after the other
  def widened(name: str) -> np.ndarray:
    return few[name].read(wide)

  def values(name: str, index: tuple[slice, ...]) -> np.ndarray:
    if name in few:
      return widened(name)[index] if index else few[name].read(wide)
    found, scale = home[name].dtype, name + eight_bits.SCALE
    if found == "I8" and scale in home:
      return eight_bits.values(home[name].read(index), home[scale].read(index[:1]))
    if found not in _FLOATS:
      raise ValueError(
        f"the dtype of tensor {name} must be one of {', '.join(_FLOATS)}, got {found}."
      )
    return home[name].read(index)

  shapes = {name: x.shape for name, x in home.items() if name not in made_of}
  shapes |= {name: each.shape for name, each in few.items()}
  for name, x in home.items():
    scale = name + eight_bits.SCALE
    if x.dtype == "I8" and shapes.get(scale) == x.shape[:-1]:
      del shapes[scale]  # any other scale has no place
  # Programs of GPTQ write biases of 0 for layers that have none.
  wanted = {part.name for parts in table.values() for part in parts}
  of_few = {f"{name.removesuffix('.weight')}.bias" for name in few} - wanted
  spare |= {name for name in of_few & home.keys() if not home[name].read().any()}
  if few and weights == "float":
    _say(directory, raw, home, table, dtype)
  native = weights == "native"
  if native and all(each.numbers is None for each in few.values()):
    _refuse_native(directory)
  held = functools.partial(_held, few, values, dtype) if native else None
  params = assemble(table, spare, shapes, values, dtype, weights=weights, mesh=mesh, own_bits=held)
  if native and not has_groups(params):
    _refuse_native(directory)
  return params


def _refuse_native(directory: pathlib.Path) -> NoReturn:
  accepted = f"float, bfloat16, int8 or int4 for {directory}, of which native can hold no matrix"
  checks.refuse("weights", "native", accepted)


def _say(
  directory: pathlib.Path,
  raw: Mapping[str, Any],
  home: Mapping[str, Stored],
  table: Layout,
  dtype: DTypeLike,
) -> None:
  """Says what memory floats take that are more than the files."""
  files = sum(x.size for x in home.values())
  numbers = sum(math.prod(part.shape) for parts in table.values() for part in parts)
  memory, name = numbers * jnp.dtype(dtype).itemsize, jnp.dtype(dtype).name
  print(
    f"{directory} has weights of {raw[quantised.KEY]['quant_method']}, {files / 1e9:.2f} GB, which "
    f"take {memory / 1e9:.2f} GB of memory in {name}.",
    file=sys.stderr,
  )


def _groups(few: Mapping[str, Few], dtype: DTypeLike, part: Fusion) -> Groups | None:
  """A tensor's rows as they lie in few bits; None where these have no such place."""
  each = few.get(part.name)
  if each is None or each.numbers is None or each.turned != part.turned:
    return None
  w = few_bits.groups(each.numbers(), dtype)
  if w is not None and part.shape[0] != each.shape[0]:
    w = w[part.first : part.first + part.shape[0]]
  if w is not None and part.woven:
    w = jax.tree.map(lambda x: jnp.concatenate([x[:, ::2], x[:, 1::2]], 1), w)
  return w


def _held(
  few: Mapping[str, Few],
  values: Read,
  dtype: DTypeLike,
  path: tuple[str, ...],
  parts: Sequence[Fusion],
) -> dict[tuple[str, ...], Matrix]:
  """`hf_layout.OwnBits`."""
  if path[-1] == "router" or not any(part.name in few for part in parts):
    return {}
  found = [_groups(few, dtype, part) for part in parts]
  made = [w for w in found if w is not None]
  if isinstance(parts, Stack):
    each = len(parts) // parts.height
    whole = few_bits.stacked(made, each) if len(made) == len(parts) else None
    return {} if whole is None else {path: whole}
  if not made or len(parts) != len(apart(path[-1])):
    return {}

  def floats(part: Fusion) -> Matrix:
    rows = (slice(part.first, part.first + part.shape[0]),)
    return parameter(part.ours(values(part.name, rows)), dtype, "float")

  every = zip(parts, found, strict=True)
  return joined(path, [floats(part) if w is None else w for part, w in every])
