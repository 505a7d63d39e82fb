"""GGUF files, as llama.cpp reads them: sizes, weights, tokenizer and chat template in one file, or
in one that has its tensors in several."""

import functools
import mmap
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from gguf import GGUFReader, ReaderTensor, quants
from jax.sharding import Mesh
from jax.typing import DTypeLike

from specjax import checks
from specjax.checkpoints import (
  few_bits,
  gguf_delta,
  gguf_groups,
  gguf_layout,
  gguf_rope,
  gguf_tokenizer,
  harmless,
)
from specjax.checkpoints.families import FAMILIES
from specjax.checkpoints.gguf_families import ARCHITECTURES, EPSILON
from specjax.checkpoints.hf import Checkpoint
from specjax.checkpoints.hf_layout import Fusion, Stack, assemble, joined
from specjax.checkpoints.llama2c import halves
from specjax.checkpoints.stored import room
from specjax.models.config import GatedDelta
from specjax.models.weights import Matrix

_SIZE = functools.partial(checks.whole, least=1)
# Keys after the architecture's name: what they accept, and their names in a config.json.
_KEYS: dict[str, tuple[Any, str]] = {
  "block_count": (_SIZE, "num_hidden_layers"),
  "embedding_length": (_SIZE, "hidden_size"),
  "feed_forward_length": (_SIZE, "intermediate_size"),
  "attention.head_count": (_SIZE, "num_attention_heads"),
  "attention.head_count_kv": (_SIZE, "num_key_value_heads"),
  "attention.key_length": (_SIZE, "head_dim"),
  "attention.causal": (bool, "is_causal"),
  "context_length": (_SIZE, "max_position_embeddings"),
  "rope.freq_base": (float, "rope_theta"),
  "vocab_size": (_SIZE, "vocab_size"),
}
_NEEDED = (
  "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
  "context_length",
)  # fmt: skip
_OTHERS = {
  "attention.value_length": _SIZE,
  "expert_count": functools.partial(checks.whole, most=0),
  **gguf_rope.SCHEMA,
}
_SHIFT = "diffusion.shift_logits"
_AT_A_TIME = 2**18  # numbers that are widened; the package would hold those of a tensor twice
_FIRST = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
_NUMBER, _COUNT = "split.no", "split.count"


def _open(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, ReaderTensor]]:
  """Metadata by key, and tensors by name, which are mapped into memory and not yet read.

  It raises ValueError where the file is absent, damaged or no GGUF file.
  """
  checks.contents(path, 1)
  try:
    reader = GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
  except (ValueError, LookupError, OverflowError, TypeError) as error:
    raise ValueError(f"{path} is truncated or no GGUF file: {error}.") from error
  for key, value in metadata.items():
    if isinstance(value, float):  # a float32; its shortest decimal is what was meant
      metadata[key] = float(str(np.float32(value)))
  return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _open_all(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, ReaderTensor]]:
  """`_open`, with the tensors of all parts of a file that was split."""
  metadata, tensors = _open(path)
  count = metadata.get(_COUNT, 0)
  if count < 2:
    return metadata, tensors
  name = _FIRST.fullmatch(path.name)
  if metadata.get(_NUMBER) != 0 or name is None or int(name[2]) != count:
    checks.refuse(f"{path}: name", path.name, f"that of the first part, *-00001-of-{count:05}.gguf")
  for number in range(1, count):
    part = path.with_name(f"{name[1]}-{number + 1:05}-of-{count:05}.gguf")
    said, own = _open(part)
    if (said.get(_NUMBER), said.get(_COUNT)) != (number, count):
      checks.refuse(f"{part}: {_NUMBER}", said.get(_NUMBER), f"{number} of {_COUNT}={count}")
    tensors |= own
  return metadata, tensors


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
  return tuple(int(n) for n in reversed(tensor.shape))


def _forget(tensor: ReaderTensor) -> None:
  """Gives the pages of a file back that were read; who needs them again reads them again."""
  held = getattr(tensor.data, "_mmap", None)
  if held is not None and hasattr(mmap, "MADV_DONTNEED"):
    held.madvise(mmap.MADV_DONTNEED)


def _values(
  tensor: ReaderTensor, number: int | None = None, dtype: DTypeLike = np.float32
) -> np.ndarray:
  """The values of a tensor, or of one of the matrices in it, which are widened a few rows at a
  time; ValueError where its type cannot be dequantised."""
  own = ... if number is None else number
  plain = np.asarray(tensor.data)[own]  # slices of a memmap take twice as long
  shape = _shape(tensor) if number is None else _shape(tensor)[1:]
  found = room(shape, dtype)
  stored, rows = plain.reshape(-1, plain.shape[-1]), found.reshape(-1, shape[-1])
  each = max(1, _AT_A_TIME // shape[-1])
  try:
    for first in range(0, len(rows), each):
      part = slice(first, first + each)
      rows[part] = quants.dequantize(stored[part], tensor.tensor_type)
      _forget(tensor)
    return found
  except NotImplementedError:
    checks.refuse(
      f"type of tensor {tensor.name}",
      tensor.tensor_type.name,
      "one that the package gguf dequantises, such as F32, BF16 or Q4_K",
    )


def _config_json(
  metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor], where: str
) -> tuple[str, dict[str, Any]]:
  """The architecture, and the values that an equal config.json has."""
  name = f"{where}: general.architecture"
  kind = checks.choice(name, metadata.get("general.architecture"), ARCHITECTURES)
  own = ARCHITECTURES[kind]
  epsilon = EPSILON[own.epsilon]
  keys = {**_KEYS, epsilon: (float, own.epsilon), **own.keys}
  known = {f"{kind}.{k}": check for k, check in _OTHERS.items()}
  known |= {f"{kind}.{k}": check for k, (check, _) in keys.items()}
  needed = [f"{kind}.{k}" for k in (*_NEEDED, epsilon, *own.needed) if k not in own.absent]
  values = checks.fields_of(metadata, known, where, needed)
  used = {*known, *gguf_tokenizer.KEYS, "general.architecture", _SHIFT, _NUMBER, _COUNT}
  harmless.known_keys(metadata, where, used, harmless.GGUF)
  found = {k.removeprefix(f"{kind}."): v for k, v in values.items()}
  raw = {theirs: found[k] for k, (_, theirs) in keys.items() if k in found}
  raw |= {"model_type": own.model_type, **own.says}
  if "vocab_size" not in raw and isinstance(tokens := metadata.get("tokenizer.ggml.tokens"), list):
    raw["vocab_size"] = len(tokens)
  raw |= own.silent(raw)
  raw |= {key: name in tensors for key, name in own.told.items()}
  raw["tie_word_embeddings"] = "output.weight" not in tensors

  head = raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
  head = raw.get("global_head_dim", head)
  lengths = {"value": (head, "the length of keys")}
  if (rank := raw.get("kv_lora_rank")) is not None:  # the cache has one head
    lengths = {"value": (rank, "that of latents"), "key": (rank + head, "that of both")}
  for name, (length, of) in lengths.items():
    if found.get(key := f"attention.{name}_length", length) != length:
      checks.refuse(f"{where}: {kind}.{key}", found[key], f"{of}, {length}")
  if head and found.get("rope.dimension_count", head) != head:
    raw["partial_rotary_factor"] = found["rope.dimension_count"] / head
  stretch = _values(tensors[gguf_rope.STRETCH]) if gguf_rope.STRETCH in tensors else None
  if own.known is not None:
    return kind, {**raw, **own.known(raw, tensors, stretch, where)}
  factors = {key: _values(tensors[name]) for name, key in gguf_rope.FACTORS.items()
             if name in tensors}  # fmt: skip
  raw["rope_scaling"] = (
    gguf_rope.longrope(found, factors, where, kind)
    if factors
    else gguf_rope.scaling(found, stretch, where, kind)
  )
  if raw["rope_scaling"] is not None and raw["rope_scaling"]["rope_type"] == "yarn":
    raw["rope_scaling"] |= own.yarn(raw)
  return kind, raw


def _keeps_bits(
  table: Mapping[tuple[str, ...], Sequence[Fusion]], tensors: Mapping[str, ReaderTensor]
) -> bool:
  """Whether "native" can keep the file's matrices of few bits, of which there are some.

  Those that are one in memory must all be of few bits, or all floats.
  """
  few = False
  for parts in table.values():
    kinds = {tensors[part.name].tensor_type for part in parts if part.name in tensors}
    if kinds <= set(gguf_groups.FLOATS):
      continue
    few = True
    if not all(map(gguf_groups.is_held, kinds)):
      return False
  return few


def load(
  path: str | pathlib.Path,
  dtype: DTypeLike = jnp.float32,
  weights: str | None = "float",
  mesh: Mesh | None = None,
) -> Checkpoint:
  """Reads a GGUF file, tensor by tensor.

  Args:
    path: of one whole file, or of the first part of one that was split, whose name is
      NAME-00001-of-COUNT.gguf.
    dtype: of the parameters in memory, whatever the file has.
    weights: how matrices lie in memory, see `weights.parameter`; "native" keeps the file's few
      bits, and has its floats in `dtype`. None is "native" where all few bits of the file can be
      kept, and else "float".
    mesh: over which they are spread, one tensor after the other; None for one device.

  Raises:
    ValueError: an unknown architecture, feature or tokenizer; a value of a wrong type or range; a
      tensor of few bits that "native" cannot keep; a missing, surplus or misshapen tensor; a file
      that is damaged or absent.
  """
  path = pathlib.Path(path)
  metadata, tensors = _open_all(path)
  kind, raw = _config_json(metadata, tensors, str(path))
  family = FAMILIES[raw["model_type"]]
  config = family.from_json(raw, str(path))
  if gguf_rope.STRETCH in tensors and ARCHITECTURES[kind].known is None:
    gguf_rope.check_stretch(config, _values(tensors[gguf_rope.STRETCH]), str(path), kind)

  theirs = gguf_layout.names(kind, config.layers)
  # By the names of the architecture's own family, of which some networks are of another.
  table = FAMILIES[ARCHITECTURES[kind].model_type].layout(config)
  table = gguf_layout.layout(table, config, theirs)
  spare = frozenset(map(theirs, family.spare(config)))
  spare |= {gguf_rope.STRETCH} | (gguf_rope.FACTORS.keys() if kind == "phi3" else set())
  spare |= {f"blk.{config.layers + i}.*" for i in range(raw.get("num_nextn_predict_layers", 0))}
  # What layers that read another's keys and values have of their own is not used.
  spare |= {
    f"blk.{i}.attn_[kv]*" for i in range(config.layers) if config.of_layer(i).source is not None
  }
  pairs = ARCHITECTURES[kind].pairs
  heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if pairs else {}
  if weights is None:
    kept = config.experts is None and _keeps_bits(table, tensors)
    weights = "native" if kept else "float"

  delta = gguf_layout.recurrent(config)
  held = dtype if weights in ("float", "native") else np.float32

  def read(name: str, index: tuple[slice, ...]) -> np.ndarray:
    name, _, number = name.partition("#")
    part = gguf_delta.part_of(name)
    own = np.float32 if part == gguf_delta.SLOPE else held  # of which the logarithm is taken
    values = _values(tensors[name], int(number) if number else None, own)
    values = values.T if part == gguf_layout.TURNED else values
    if delta is not None and gguf_delta.is_recurrent(part):
      values = gguf_delta.ours(part, values, delta, kind)
    return (halves(values, heads[part]) if part in heads else values)[index]

  def own_bits(path: tuple[str, ...], parts: Sequence[Fusion]) -> dict[tuple[str, ...], Matrix]:
    """Matrices of few bits."""
    stored = [part.name.partition("#") for part in parts]
    found = [tensors[name] for name, *_ in stored]
    kinds = {gguf_delta.part_of(name) for name, *_ in stored}
    moved = gguf_layout.TURNED in kinds or any(part.grouped for part in parts)
    moved |= isinstance(delta, GatedDelta) and any(map(gguf_delta.is_recurrent, kinds))
    if moved or all(x.tensor_type in gguf_groups.FLOATS for x in found):
      return {}  # groups of inputs would be groups of outputs, or rows lie otherwise
    for x in found:
      if not gguf_groups.is_held(x.tensor_type):
        checks.refuse(f"type of tensor {x.name}", x.tensor_type.name, f"with {weights} weights "
                      f"{gguf_groups.HELD}, or floats beside no other")  # fmt: skip
    made = []
    for part, (stem, _, number), tensor in zip(parts, stored, found, strict=True):
      name, data = stem.split(".")[-2], np.asarray(tensor.data)
      data = data[int(number)] if number else data
      data = halves(data, heads[name]) if name in heads else data
      data = data[part.first : part.first + part.shape[0]]
      made.append(gguf_groups.groups(data, tensor.tensor_type, dtype))
      _forget(tensor)
    if not isinstance(parts, Stack):
      return joined(path, made)
    if (whole := few_bits.stacked(made, len(parts) // parts.height)) is None:
      types = ", ".join(sorted({x.tensor_type.name for x in found}))
      checks.refuse(f"types of {found[0].name} and others", types, f"one with {weights} weights")
    return {path: whole}

  shapes = gguf_layout.shapes({name: _shape(tensor) for name, tensor in tensors.items()})
  source = f"the metadata of {path.name}"
  params = assemble(
    table,
    spare,
    shapes,
    read,
    dtype,
    source,
    weights,
    mesh,
    own_bits if weights == "native" else None,
  )
  text = gguf_tokenizer.read(metadata, config.vocab_size, str(path))
  own = checks.fields_of(metadata, {_SHIFT: bool}, str(path))
  return Checkpoint(
    config=config,
    params=params,
    tokenizer=text.tokenizer,
    stop=text.stop,
    template=text.template,
    start=text.start,
    mask=text.mask,
    shift=own.get(_SHIFT, kind == "dream"),
  )
