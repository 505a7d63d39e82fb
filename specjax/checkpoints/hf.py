"""Hugging Face directories: config.json, weights and tokenizer.json, in and out."""

import functools
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import (
  eight_bits,
  families,
  harmless,
  hf_config,
  hf_pictures,
  hf_rows,
  hf_tokenizer,
  hf_weights,
  quantised,
  templates,
)
from specjax.checkpoints.families import FAMILIES
from specjax.checkpoints.files import read_config, write
from specjax.checkpoints.hf_layout import scatter
from specjax.data.chat import TEMPLATES, ChatTemplate
from specjax.data.tokenizer import END, Tokenizer
from specjax.models.config import Config
from specjax.models.parscale import ParScale


class Checkpoint(NamedTuple):
  """A model as `load` reads it.

  Attributes:
    params: {"params": {...}} as `Transformer(config)` takes it.
    stop: ids that end a text.
    template: how a conversation is written, or None.
    start: ids that belong before every text prompt; `Tokenizer.encode` does not add them.
    mask: id of the mask token of a masked diffusion model, or of a causal draft model, or None.
    shift: whether the state before a masked token predicts it (Dream, Fast-dLLM v2).
  """

  config: Config
  params: Params
  tokenizer: Tokenizer | None
  stop: tuple[int, ...]
  template: ChatTemplate | None
  start: tuple[int, ...] = ()
  mask: int | None = None
  shift: bool = False


def _one_or_more(name: str, value: Any) -> tuple[int, ...]:
  ids = value if isinstance(value, list) else [value]
  return tuple(checks.whole(name, each) for each in ids)


def _token(name: str, value: Any) -> str:
  """A token as text, or as the object that transformers writes for it."""
  return checks.text(name, value.get("content") if isinstance(value, dict) else value)


PARD = "pard_token"  # the mask of a causal draft model, see `drafters.models.masks`
_IDS = {"eos_token_id": _one_or_more}
_TOKENS = {"bos_token": _token, "eos_token": _token, "mask_token": _token}
_TOKENIZER = _TOKENS | {
  "add_bos_token": bool, "add_prefix_space": bool, "legacy": bool, "tokenizer_class": str,
  "added_tokens_decoder": hf_tokenizer.added_tokens, "chat_template": templates.source,
  hf_tokenizer.SHARED: hf_tokenizer.shared,
}  # fmt: skip
_OWN = {
  "specjax_template": functools.partial(checks.choice, accepted=TEMPLATES),
  "specjax_shift": bool,
  "mask_token_id": int,
  PARD: int,
}
_SHIFTED = ("Dream", "Fast_dLLM_Qwen")
# The mask's id in the published programs of families whose config.json need not have it.
_MASKS = {
  "sdar": 151669, "sdar_moe": 151669, "Fast_dLLM_Qwen": 151665, "wedlm": 151665, "lladamoe": 156895,
  "llada2_moe": 156895,
}  # fmt: skip


def _optional(
  path: pathlib.Path, known: Mapping[str, Any], others: harmless.Harmless
) -> dict[str, Any]:
  """The checked values of a file that a checkpoint may lack."""
  if not path.exists():
    return {}
  raw = checks.read_json(path)
  harmless.known_keys(raw, str(path), known, others)
  return checks.fields_of(raw, known, str(path))


def start_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
  """The ids that the tokenizer's own post-processor puts before a text."""
  encoding = tokenizer.inner.encode("a")
  return tuple(encoding.ids[: [*encoding.special_tokens_mask, 0].index(0)])


def _start(tokenizer: Tokenizer | None, known: Mapping[str, Any]) -> tuple[int, ...]:
  """The ids before a text, by `add_bos_token` of `known` or, where it is absent, tokenizer.json."""
  if tokenizer is None or known.get("add_bos_token") is False:
    return ()
  start = start_ids(tokenizer)
  if start or not known.get("add_bos_token"):
    return start
  token = known.get("bos_token")
  bos = None if token is None else tokenizer.id(token)
  if bos is None:
    raise ValueError(f"tokenizer_config.json: bos_token={token!r} is no token of the tokenizer.")
  return (bos,)


def _stop(
  written: Mapping[str, Any],
  own: Mapping[str, Any],
  known: Mapping[str, Any],
  tokenizer: Tokenizer | None,
) -> tuple[int, ...]:
  """The ids that end a text: generation_config.json's, or else config.json's, as in transformers,
  or else the tokenizer's `eos_token`."""
  for found in (written, own):
    if "eos_token_id" in found:
      return found["eos_token_id"]
  end = None if tokenizer is None else tokenizer.id(known.get("eos_token", ""))
  return () if end is None else (end,)


def _mask(
  family: str, own: Mapping[str, Any], known: Mapping[str, Any], tokenizer: Tokenizer | None
) -> int | None:
  """The mask's id, by config.json, or else the tokenizer's files, or else the published program."""
  if family not in _MASKS or "mask_token_id" in own:
    return own.get("mask_token_id", own.get(PARD))
  found = None
  if tokenizer is not None and "mask_token" in known:
    found = tokenizer.id(known["mask_token"])
  return _MASKS[family] if found is None else found


def load(
  directory: str | pathlib.Path,
  dtype: DTypeLike = jnp.float32,
  weights: str = "float",
  mesh: Mesh | None = None,
) -> Checkpoint:
  """Reads a directory of one of `families.FAMILIES`.

  Of one with a tower for pictures the language model is read, and a line on stderr says so.

  Args:
    directory: holds config.json, model.safetensors or pytorch_model.bin, whole or in shards, and
      mostly tokenizer.json.
    dtype: of the parameters in memory, whatever the file has.
    weights: how matrices lie in memory, see `weights.parameter`; "native" keeps whole numbers in
      few bits, see `few_bits.groups`, and has other tensors in `dtype`.
    mesh: over which they are spread while they are read, see `assemble`; None for one device.

  Raises:
    ValueError: an unknown family or feature; a value of a wrong type or range; a missing, surplus
      or misshapen tensor; a file that is damaged or absent.
  """
  directory = pathlib.Path(directory)
  file, raw = directory / "config.json", read_config(directory, "model")
  family = hf_config.family_of(raw)
  kind = families.by_type(raw, str(file))
  if not quantised.is_read(raw):
    quantised.check_config(directory, raw)
  config = kind.from_json(raw, str(file))
  kind.check_keys(raw, config, str(file), (*_OWN, *_IDS, quantised.KEY))
  own = checks.fields_of(raw, _OWN | _IDS, str(file))
  written = _optional(directory / "generation_config.json", _IDS, harmless.GENERATION)
  known = _optional(directory / "special_tokens_map.json", _TOKENS, harmless.TOKENIZER)
  known |= _optional(directory / "tokenizer_config.json", _TOKENIZER, harmless.TOKENIZER)
  tokenizer = hf_tokenizer.read(directory, known, family)
  mask = _mask(family, own, known, tokenizer)
  if mask is not None:
    key = PARD if PARD in own else "mask_token_id"
    checks.whole(f"{file}: {key}", mask, 0, config.vocab_size - 1)
  # null says that there is none, an absent key that the published family's own is meant.
  usual = None if "specjax_template" in raw else {"llada": "llada", "Dream": "dream"}.get(family)
  named = own.get("specjax_template", usual)
  if family in hf_pictures.TEXTS:
    print(f"{directory} is read as its language model, without pictures.", file=sys.stderr)
  spare = kind.spare(config)
  spare |= hf_rows.more_drafts(raw, spare, config)
  params = hf_weights.read(directory, raw, kind.layout(config), spare, dtype, weights, mesh)
  return Checkpoint(
    config=config,
    params=params,
    tokenizer=tokenizer,
    stop=_stop(written, own, known, tokenizer),
    template=templates.read(directory, known) or (TEMPLATES[named] if named else None),
    start=_start(tokenizer, known),
    mask=mask,
    shift=own.get("specjax_shift", family in _SHIFTED),
  )


def save(
  directory: str | pathlib.Path,
  config: Config | ParScale,
  params: Params,
  tokenizer: Tokenizer | None = None,
  *,
  template: ChatTemplate | None = None,
  stop: Sequence[int] = (),
  start: Sequence[int] = (),
  mask: int | None = None,
  shift: bool = False,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes a `Checkpoint` to a directory that `load` and transformers read.

  A model with a mask token is written in the layout of the published denoiser of its features,
  see `hf_config.to_json`, which that family's own program reads.

  Args:
    directory: is made where it is absent.
    template: one in Jinja is written as chat_template.jinja; of one of `data.chat.TEMPLATES` only
      the name is written, which transformers does not read.
    stop: by default the id of `<|end|>` where the tokenizer has it.
    start: by default what the tokenizer's post-processor puts before a text.
    dtype: of the tensors on disk; int8 is that of `eight_bits.narrow`, which transformers does not
      read.

  Raises:
    ValueError: params are not those of the config, or not finite in `dtype`; an unknown template;
      a config that no family has.
  """
  named = templates.known(template)
  raw = families.to_json(config, mask=mask is not None and not config.causal, shift=shift)
  family = hf_config.family_of(raw)
  narrow = jnp.dtype(dtype) == jnp.int8
  tensors = scatter(params, FAMILIES[family].layout(config), jnp.float32 if narrow else dtype)
  tensors = eight_bits.narrow(tensors) if narrow else tensors
  if not start and tokenizer is not None:
    start = start_ids(tokenizer)
  if not stop and tokenizer is not None and (end := tokenizer.id(END)) is not None:
    stop = (end,)
  # For ids that are absent, transformers would take the family's defaults.
  ends = {"bos_token_id": start[0] if start else None, "eos_token_id": list(stop) or None}
  raw |= {**ends, "torch_dtype": jnp.dtype(dtype).name}
  if named is not None or mask is not None:
    raw["specjax_template"] = named
  if mask is not None and config.causal:
    raw |= {PARD: mask, "spd_type": "pard"}
  elif mask is not None:
    raw |= {"mask_token_id": mask, "pad_token_id": stop[0] if stop else None}
    if shift != (family in _SHIFTED):
      raw["specjax_shift"] = shift

  directory = pathlib.Path(directory)
  write(directory / "model.safetensors", tensors, raw)
  (directory / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
  special = templates.write(directory, template)
  if tokenizer is not None:
    tokenizer.save(directory / "tokenizer.json")
    names: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if start:
      names |= {"bos_token": tokenizer.inner.id_to_token(start[0]), "add_bos_token": True}
    if stop:
      names["eos_token"] = tokenizer.inner.id_to_token(stop[0])
    (directory / "tokenizer_config.json").write_text(json.dumps(names | special, indent=2) + "\n")
