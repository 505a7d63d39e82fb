"""Draft heads on disk, of any kind: config.json beside safetensors of float16.

config.json names the method, its config, the target it was trained for, the tree (best-first, so
that its first n - 1 paths are the best tree of n nodes) and the held-out hit rates.
"""

import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import eight_bits, families, harmless, trained_for
from specjax.checkpoints.files import check, read_config, read_tensors, write
from specjax.checkpoints.trained_for import Identity
from specjax.heads import draft_vocabulary
from specjax.heads.base import Head
from specjax.heads.named import built, named
from specjax.models.config import Config
from specjax.models.weights import as_floats
from specjax.sampling import new_key
from specjax.trees.dynamic import Dynamic
from specjax.trees.static import Choices, from_choices

_WEIGHTS = "head.safetensors"
_KEYS = ("head", "config", "draft_vocab", "choices", "hit_rates")
MOST = 64  # the most tokens ahead, or blocks of a network: XLA would compile more for hours


class LoadedHead(NamedTuple):
  """A head as it was read, for the target it was asked for.

  Attributes:
    choices: its tree in order of worth, () where the format has none.
    hit_rates: f[D, R], how often rank r of depth d + 1 is right given that its parent is, on
      held-out text; None where the format has none.
    config: the config of its method.
    network: the target's config, with what is different in the layer of a published head.
    tree: that of the published code, for a head without choices and hit rates, or None.
  """

  head: Head
  params: Params
  choices: Choices
  hit_rates: np.ndarray | None
  config: Any
  network: Config
  tree: Dynamic | None = None


def abstract(
  head: Head, model: Config, draft_vocab: int | None, target_params: Params | None = None
) -> Params:
  """Shapes and dtypes of a head's params; the target is traced where its own are not given."""
  key = jax.eval_shape(new_key, 0)
  if target_params is None:
    target_params = jax.eval_shape(functools.partial(families.family_of(model).init, model), key)
  else:
    target_params = jax.eval_shape(as_floats, target_params)
  vocabulary = draft_vocab and jax.ShapeDtypeStruct((draft_vocab,), jnp.int32)
  return jax.eval_shape(head.init, key, target_params, vocabulary or None)


def choices(name: str, value: Any) -> Choices:
  """The tree of a file, as a tuple of rank paths; ValueError where the value is no tree."""
  paths = checks.accept(tuple[tuple[int, ...], ...])(name, value)
  try:
    from_choices(paths)
  except ValueError as error:
    raise ValueError(f"{name}: {error}") from None
  return paths


def _hit_rates(name: str, value: Any) -> np.ndarray:
  rows = checks.accept(tuple[tuple[float, ...], ...])(name, value)
  if len({len(row) for row in rows}) != 1 or not all(0 <= x <= 1 for row in rows for x in row):
    checks.refuse(name, value, "rows of one length, of rates from 0 to 1")
  return np.asarray(rows)


_SCHEMA = {"draft_vocab": int, "choices": choices, "hit_rates": _hit_rates}


def load(
  directory: str | pathlib.Path,
  model: Config,
  dtype: DTypeLike = jnp.float32,
  called: str = "",
  target_params: Params | None = None,
) -> LoadedHead:
  """A head for the target `model`, whose params save tracing it for their shapes.

  The user calls the head `called`: FILE.py:FUNCTION is run in place of the file that config.json
  names, which somebody else may have written and which is never run. It raises ValueError for a
  config of no known head, for a Python file that the user did not name, and for tensors that are
  missing, extra or misshapen, as those of a head for another target are.
  """
  raw, path = read_config(directory), pathlib.Path(directory) / _WEIGHTS
  file = f"{directory}/config.json"
  for key in _KEYS:
    if key not in raw:
      raise ValueError(f"{file} lacks {key}: this is no draft head.")
  harmless.known_keys(raw, file, {*_KEYS, "base", trained_for.KEY}, {})
  own = checks.fields_of(raw, _SCHEMA, file, ["config"])
  name = called if checks.is_own_file(called) else raw["head"]
  if name != called and checks.is_own_file(name):
    raise ValueError(
      f"{file}: head={name!r} is in a Python file, which is run only where you name "
      f"it yourself: use drafter={f'{name}[{directory}]'!r}."
    )
  try:
    build, kind = named(name)
  except ValueError as error:
    raise ValueError(f"{file}: {error}") from error
  config = checks.from_json(kind, raw["config"], f"{file}: config")
  for name, least in (("depth", 1), ("blocks", 0), ("layers", 0)):
    if isinstance(number := getattr(config, name, None), int):
      checks.whole(f"{file}: {name}", number, least, MOST)
  draft_vocab = own.get("draft_vocab")
  if draft_vocab is not None:
    checks.whole(f"{file}: draft_vocab", draft_vocab, 1, model.vocab_size)
  head = built(build, families.target(model), config)
  leaves = flatten_dict(abstract(head, model, draft_vocab, target_params), sep="/")
  tensors = eight_bits.widen(read_tensors(path), path)
  check(tensors, {k: v.shape for k, v in leaves.items()}, path)
  for key, leaf in leaves.items():
    if (tensors[key].dtype.kind in "iu") != jnp.issubdtype(leaf.dtype, jnp.integer):
      checks.refuse(f"{path}: dtype of tensor {key}", tensors[key].dtype.name, leaf.dtype.name)
  ids = tensors.get(draft_vocabulary.KEY)
  if ids is not None and not 0 <= ids.min() <= ids.max() < model.vocab_size:
    raise ValueError(f"{path}: {draft_vocabulary.KEY} has ids beyond 0 to {model.vocab_size - 1}.")
  params = {
    k: jnp.asarray(v, leaves[k].dtype if v.dtype.kind in "iu" else dtype)
    for k, v in tensors.items()
  }
  tree, rates = own.get("choices", ()), own.get("hit_rates")
  return LoadedHead(head, unflatten_dict(params, sep="/"), tree, rates, config, model)


def weights_like(
  directory: str | pathlib.Path, model: Config, like: Params, called: str = ""
) -> Params:
  """The weights of a head, to go on training it.

  It raises ValueError as `load` does, and where shapes or draft vocabulary are not those of `like`.
  """
  params = load(directory, model, called=called).params
  shapes, ours = (jax.tree.map(jnp.shape, p) for p in (params, like))
  if shapes != ours or not np.array_equal(*(p.get(draft_vocabulary.KEY) for p in (params, like))):
    raise ValueError(
      "`init` must hold a head of this shape and vocabulary, got one of another in "
      f"{str(directory)!r}."
    )
  return params


def save(
  directory: str | pathlib.Path,
  name: str,
  config: Any,
  params: Params,
  choices: Choices,
  hit_rates: np.ndarray | None,
  *,
  base: str | Identity,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes what `load` reads; see `Loaded` for the values.

  Args:
    name: of the head, as `drafters.named` takes it.
    base: the target, or its name alone.
    dtype: of the weights on disk; int8 is that of `eight_bits.narrow`.

  Raises:
    ValueError: a weight is not finite in `dtype`.
  """
  tensors = {key: np.asarray(x) for key, x in flatten_dict(params, sep="/").items()}
  tensors = eight_bits.cast(tensors, dtype)
  vocabulary = draft_vocabulary.ids(params)
  if vocabulary is not None and vocabulary.max() < 2**16:  # half the bytes
    tensors[draft_vocabulary.KEY] = np.asarray(vocabulary, np.uint16)
  raw = {
    "head": name,
    "config": dataclasses.asdict(config),
    "draft_vocab": None if vocabulary is None else len(vocabulary),
    **trained_for.record(base=base),
    "choices": [list(path) for path in choices],
    "hit_rates": None if hit_rates is None else np.asarray(hit_rates).round(4).tolist(),
  }
  write(pathlib.Path(directory) / _WEIGHTS, tensors, raw)
