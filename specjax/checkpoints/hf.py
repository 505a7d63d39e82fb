"""Hugging Face directories: config.json, safetensors and tokenizer.json, in and out."""

import contextlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from specjax.base import Params
from specjax.checkpoints import hf_config
from specjax.checkpoints.families import FAMILIES
from specjax.checkpoints.hf_layout import HF, Layout, layout
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import END, Tokenizer
from specjax.models.config import Config

_INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")


class Checkpoint(NamedTuple):
  """A model as it was read.

  Attributes:
    config: the network.
    params: {"params": {...}} as `Transformer(config)` takes it.
    tokenizer: None where the checkpoint has none.
    stop: ids that end a text.
    template: name of the chat template in `data.chat.TEMPLATES`, or None.
    start: ids that belong before every text prompt; `Tokenizer.encode` does not add them.
    mask: id of the mask token of a masked diffusion model, or None.
    shift: its state before a token predicts it (Dream).
  """

  config: Config
  params: Params
  tokenizer: Tokenizer | None
  stop: tuple[int, ...]
  template: str | None
  start: tuple[int, ...] = ()
  mask: int | None = None
  shift: bool = False


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  try:
    return json.loads(path.read_text())
  except json.JSONDecodeError as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error


def _optional_json(path: pathlib.Path) -> dict[str, Any]:
  return _read_json(path) if path.exists() else {}


def _weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """The one safetensors file, or the shards of the index."""
  single, index = directory / "model.safetensors", directory / _INDEX
  if single.exists():
    return [single]
  if not index.exists():
    raise ValueError(f"{directory} has neither model.safetensors nor {_INDEX}.")
  shards = sorted(set(_read_json(index)["weight_map"].values()))
  for shard in shards:
    if not (directory / shard).exists():
      raise ValueError(f"{index} names {shard}, which is not in {directory}.")
  return [directory / shard for shard in shards]


def _check_names(found: set[str], table: Layout, spare: frozenset[str]) -> None:
  expected = {part.name: part.shape for parts in table.values() for part in parts}
  for name, shape in expected.items():
    if name not in found:
      raise ValueError(f"the checkpoint lacks tensor {name} of shape {shape}.")
  for name in sorted(found - expected.keys() - spare):
    if not name.endswith("rotary_emb.inv_freq"):
      raise ValueError(f"the checkpoint has tensor {name}, for which config.json has no place.")


def _read_params(
  directory: pathlib.Path, table: Layout, spare: frozenset[str], dtype: DTypeLike
) -> Params:
  """One parameter at a time, so that the host never holds the model twice."""
  with contextlib.ExitStack() as stack:
    home: dict[str, Any] = {}
    for shard in _weight_files(directory):
      try:
        file = stack.enter_context(safetensors.safe_open(shard, "numpy"))
      except safetensors.SafetensorError as error:
        raise ValueError(f"{shard} is truncated or no safetensors file: {error}.") from error
      home |= dict.fromkeys(file.keys(), file)
    _check_names(set(home), table, spare)
    params = {}
    for path, parts in table.items():
      rows = sum(part.shape[0] for part in parts)
      whole = np.empty((rows, *parts[0].shape[1:]), jnp.dtype(dtype))
      row = 0
      for name, shape in parts:
        view = home[name].get_slice(name)
        if tuple(view.get_shape()) != shape:
          raise ValueError(
            f"tensor {name} has shape {tuple(view.get_shape())}, config.json calls for {shape}."
          )
        if view.get_dtype() not in _FLOATS:
          raise ValueError(
            f"tensor {name} has dtype {view.get_dtype()}; accepted are {', '.join(_FLOATS)}."
          )
        whole[row : row + shape[0]] = home[name].get_tensor(name)
        row += shape[0]
      params[path] = jnp.asarray(whole)
  return {"params": unflatten_dict(params)}


def start_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
  """The ids that the tokenizer's own post-processor puts before a text."""
  encoding = tokenizer.inner.encode("a")
  return tuple(encoding.ids[: [*encoding.special_tokens_mask, 0].index(0)])


def _start(tokenizer: Tokenizer | None, raw: Mapping[str, Any]) -> tuple[int, ...]:
  """`add_bos_token` of tokenizer_config.json decides; where it is silent, tokenizer.json."""
  if tokenizer is None or raw.get("add_bos_token") is False:
    return ()
  start = start_ids(tokenizer)
  if start or not raw.get("add_bos_token"):
    return start
  token = raw.get("bos_token")
  token = token["content"] if isinstance(token, dict) else token
  bos = None if token is None else tokenizer.id(token)
  if bos is None:
    raise ValueError(f"tokenizer_config.json: bos_token={token!r} is not in tokenizer.json.")
  return (bos,)


def _stop(*sources: Mapping[str, Any]) -> tuple[int, ...]:
  for source in sources:
    ids = source.get("eos_token_id")
    if ids is not None:
      return tuple(ids) if isinstance(ids, list) else (ids,)
  return ()


def load(directory: str | pathlib.Path, dtype: DTypeLike = jnp.float32) -> Checkpoint:
  """Reads a Llama, Mistral, Qwen2, Qwen3, LLaDA or Dream directory.

  Args:
    directory: holds config.json, model.safetensors or its shards, and mostly tokenizer.json.
    dtype: of the parameters in memory, whatever it is on disk.

  Raises:
    ValueError: an unknown family or feature; a missing, surplus or misshapen tensor; a truncated
      file; a shard that is not there.
  """
  directory = pathlib.Path(directory)
  if not (directory / "config.json").exists():
    raise ValueError(f"{directory} has no config.json.")
  raw = _read_json(directory / "config.json")
  family = str(raw.get("model_type"))
  kind = FAMILIES.get(family, FAMILIES["llama"])  # which refuses what is no family
  config = kind.from_json(raw)
  template = raw.get("specjax_template", {"llada": "llada", "Dream": "dream"}.get(family))
  if template is not None and template not in TEMPLATES:
    raise ValueError(
      f"specjax_template={template!r} in config.json: accepted are {', '.join(TEMPLATES)}."
    )
  file = directory / "tokenizer.json"
  tokenizer = Tokenizer.load(file) if file.exists() else None
  return Checkpoint(
    config=config,
    params=_read_params(directory, kind.layout(config), kind.spare(config), dtype),
    tokenizer=tokenizer,
    stop=_stop(_optional_json(directory / "generation_config.json"), raw),
    template=template,
    start=_start(tokenizer, _optional_json(directory / "tokenizer_config.json")),
    mask=raw.get("mask_token_id"),
    shift=raw.get("specjax_shift", family == "Dream"),
  )


def _split(config: Config, params: Params, dtype: DTypeLike) -> dict[str, np.ndarray]:
  """Our parameters as the tensors on disk."""
  table, leaves = layout(config, HF), flatten_dict(params["params"])
  for path in table.keys() ^ leaves.keys():
    state = "lacks" if path in table else "has no place for"
    raise ValueError(f"the config and params disagree: params {state} {'/'.join(path)}.")
  tensors = {}
  for path, parts in table.items():
    whole = np.asarray(leaves[path])
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    if whole.shape != shape:
      raise ValueError(f"{'/'.join(path)} has shape {whole.shape}, the config calls for {shape}.")
    row = 0
    for name, part in parts:
      with np.errstate(over="ignore"):
        tensor = whole[row : row + part[0]].astype(jnp.dtype(dtype), order="C")
      if not np.isfinite(tensor).all():
        raise ValueError(f"tensor {name} is not finite in dtype {jnp.dtype(dtype).name}.")
      tensors[name] = tensor
      row += part[0]
  return tensors


def save(
  directory: str | pathlib.Path,
  config: Config,
  params: Params,
  tokenizer: Tokenizer | None = None,
  *,
  template: str | None = None,
  stop: Sequence[int] = (),
  start: Sequence[int] = (),
  mask: int | None = None,
  shift: bool = False,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes a directory that `load` and transformers read.

  Args:
    directory: made where it is absent.
    config, params: the network.
    tokenizer: written beside the weights.
    template: name of the chat template in `data.chat.TEMPLATES`.
    stop: ids that end a text; by default the id of `<|end|>` where the tokenizer has it.
    start: ids before every text prompt; by default what the tokenizer's post-processor adds.
    mask, shift: of a masked diffusion model, see `Checkpoint`.
    dtype: of the tensors on disk.

  Raises:
    ValueError: params are not those of the config, or not finite in `dtype`; an unknown template;
      a config that no family has.
  """
  if template is not None and template not in TEMPLATES:
    raise ValueError(f"template={template!r}: accepted are {', '.join(TEMPLATES)}.")
  raw = hf_config.to_json(config)
  tensors = _split(config, params, dtype)
  if not start and tokenizer is not None:
    start = start_ids(tokenizer)
  if not stop and tokenizer is not None and (end := tokenizer.id(END)) is not None:
    stop = (end,)
  # Absent ids would become a family's defaults in transformers.
  ends = {"bos_token_id": start[0] if start else None, "eos_token_id": list(stop) or None}
  raw |= {**ends, "torch_dtype": jnp.dtype(dtype).name}
  if template is not None:
    raw["specjax_template"] = template
  if mask is not None:
    raw |= {"mask_token_id": mask, "specjax_shift": shift}

  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)

  def write(name: str, content: Mapping[str, Any]) -> None:
    (directory / name).write_text(json.dumps(content, indent=2) + "\n")

  save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
  write("config.json", raw)
  write("generation_config.json", ends)
  if tokenizer is not None:
    tokenizer.save(directory / "tokenizer.json")
    names: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if start:
      names |= {"bos_token": tokenizer.inner.id_to_token(start[0]), "add_bos_token": True}
    if stop:
      names["eos_token"] = tokenizer.inner.id_to_token(stop[0])
    write("tokenizer_config.json", names)
