"""Draft heads in any format, in and out: ours, or one in which heads are published."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import (
  dflash,
  domino,
  dspark,
  eagle,
  eagle3,
  eagle3_file,
  gemma4_assistant,
  heads,
  hf_config,
  hydra,
  medusa,
  mlp_speculator,
  mtp,
  peagle,
  quantised,
  speculators,
  trained_for,
)
from specjax.checkpoints.files import read_config, write
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.trained_for import Identity
from specjax.heads import HEADS, draft_vocabulary, embedding
from specjax.models.config import Config
from specjax.models.transformer import target

PUBLISHED = {
  "medusa": medusa, "hydra": hydra, "eagle": eagle, "eagle3": eagle3,
  "mlp_speculator": mlp_speculator, "dflash": dflash, "mtp": mtp,
  "peagle": peagle, "dspark": dspark, "domino": domino, "gemma4_assistant": gemma4_assistant,
}  # fmt: skip
SPECFORGE = "specforge"  # of DSpark, which has another of its own name
FORMATS = ("specjax", *PUBLISHED, speculators.FORM, SPECFORGE)
# Formats whose other marks a trainer may leave out; no other has these architectures.
NAMED = {"dflash": dflash.ARCHITECTURES, "peagle": peagle.ARCHITECTURES,
         "dspark": dspark.ARCHITECTURES + dspark.SPECFORGE,
         "domino": domino.ARCHITECTURES}  # fmt: skip
TORCH = ("medusa", "hydra")  # whose programs load a file of torch


def format_of(raw: Mapping[str, Any]) -> str | None:
  """The format of a head's config.json, one of FORMATS; None where it has none of them."""
  marks = {"head": "specjax", "medusa_num_heads": "medusa", "hydra_num_heads": "hydra",
           "dflash_config": "dflash", "num_nextn_predict_layers": "mtp"}  # fmt: skip
  said = raw.get("architectures")
  said = said if isinstance(said, list) else [said]
  own = [form for form, names in NAMED.items() if any(name in names for name in said)]
  if own and eagle3_file.KIND not in raw:
    return own[0]
  if found := [form for key, form in marks.items() if key in raw]:
    return found[0]
  if "draft_vocab_size" in raw:
    usual = "peagle" if any(key in raw for key in peagle.MASK_TOKENS) else "eagle3"
    kind = raw.get(eagle3_file.KIND, usual)
    return kind if kind in ("eagle3", "peagle", "dflash", "dspark") else None
  if mtp.is_format(raw):
    return "mtp"
  family = raw.get("model_type")
  if family in hf_config.FAMILIES and raw.get("num_hidden_layers") == 1:
    return "eagle"
  return family if family in ("mlp_speculator", gemma4_assistant.KIND) else None


def load(
  directory: str | pathlib.Path,
  model: Config,
  dtype: DTypeLike = jnp.float32,
  called: str = "",
  *,
  target_params: Params | None = None,
) -> LoadedHead:
  """A head for the target `model`; config.json tells the format, `called` is as in `heads.load`.

  An embedding that the file brings is kept, unless it is that of `target_params`.

  It raises ValueError where the directory has no known format, or its format refuses it.
  """
  raw = read_config(directory)
  form = format_of(raw)
  if form is None:
    raise ValueError(f"{directory}/config.json is of no known format: {', '.join(FORMATS)} are.")
  if form == "specjax" or checks.is_own_file(called):
    return heads.load(directory, model, dtype, called, target_params)
  if form != "mtp" or not quantised.is_read(raw):  # its config.json is the target's
    quantised.check_config(pathlib.Path(directory), raw, quantised.FLOATS)
  loaded = PUBLISHED[form].decode(raw, pathlib.Path(directory), model, dtype)
  return loaded if target_params is None else _without_copy(loaded, target_params)


def _without_copy(loaded: LoadedHead, target_params: Params) -> LoadedHead:
  """The head, without an embedding that repeats the target's but for rounding."""
  own = loaded.params["params"].get("embedding")
  if own is None:
    return loaded
  network = target(loaded.network)
  ours, theirs = (
    np.asarray(x, np.float32) for x in (own, embedding.of_target(network, target_params))
  )
  if not np.allclose(ours, theirs, rtol=2**-8, atol=1e-6):
    return loaded
  config = dataclasses.replace(loaded.config, own_embedding=False)
  params = {k: v for k, v in loaded.params["params"].items() if k != "embedding"}
  head = HEADS[loaded.head.name][0](network, config)
  return loaded._replace(head=head, config=config, params={**loaded.params, "params": params})


def save(
  directory: str | pathlib.Path,
  form: str,
  loaded: LoadedHead,
  model: Config,
  target_params: Params,
  *,
  base: str | Identity,
  dtype: DTypeLike = jnp.float16,
  torch: bool = False,
) -> None:
  """Writes a head for the target `model` in the format `form`: "specjax", that of the head's own
  name, "speculators", or "specforge" of DSpark.

  No published format but Medusa's keeps the tree, and none the hit rates. `base` is the target, or
  its name; servers load the target by it where the format is that of speculators. With `torch` the
  weights are the .pt file that the programs of Medusa and Hydra load; both kinds of file are read
  here. It raises ValueError where the format is not for this head, has no place for a part of it or
  no such file, or where torch is needed and absent.
  """
  name, network = loaded.head.name, loaded.network
  if torch and form not in TORCH:
    raise ValueError(
      f"`torch` must be False for the format {form}, got True: only {' and '.join(TORCH)} are "
      "written as torch files."
    )
  accepted = ["specjax", *([name] if name in PUBLISHED else [])]
  accepted += [speculators.FORM] if name in speculators.HEADS else []
  accepted += [SPECFORGE] if name == "dspark" else []
  if form not in accepted:
    raise ValueError(f"`to` must be {' or '.join(accepted)} for a head of {name}, got {form!r}.")
  if form == "specjax":
    for field in dataclasses.fields(model):
      own, theirs = (getattr(x, field.name) for x in (network, model))
      if own != theirs:
        raise ValueError(
          f"{field.name}={own} of the head's layer is not the target's, {theirs}: "
          "the format specjax has no place for it."
        )
    heads.save(
      directory,
      name,
      loaded.config,
      loaded.params,
      loaded.choices,
      loaded.hit_rates,
      base=base,
      dtype=dtype,
    )
    return
  words = draft_vocabulary.ids(loaded.params)
  if form not in ("eagle3", "peagle", speculators.FORM) and words is not None:
    raise ValueError(f"the format {form} has no place for a draft vocabulary.")
  if form == speculators.FORM:
    called = base if isinstance(base, str) else base.name
    file, tensors, raw = speculators.encode(loaded, target_params, model, called, dtype)
  elif form == SPECFORGE:
    file, tensors, raw = dspark.encode_specforge(loaded, dtype)
  else:
    file, tensors, raw = PUBLISHED[form].encode(loaded, target_params, dtype)
  path = pathlib.Path(directory) / file
  raw |= trained_for.record(base_model_name_or_path=base)
  write(path.with_suffix(".pt") if torch else path, tensors, raw)
