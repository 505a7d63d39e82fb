"""What the files of EAGLE-3 and P-EAGLE share, as SafeAILab, SpecForge and speculators write them.

`fc` joins layers of the target, and `norm` and `lm_head` make the output logits of the
`draft_vocab_size` draft tokens. Draft token i is the target's token i + `d2t`[i]; `t2d` marks the
target's tokens that have a draft token. In the format of speculators, config.json holds that of a
Llama as `transformer_layer_config`.

Letters: V vocabulary, W draft vocabulary, L the target's layers.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import harmless, published
from specjax.checkpoints.files import Shapes
from specjax.checkpoints.hf_layout import Fusion, block
from specjax.heads import draft_vocabulary
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.models.config import Config

OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE-3.1
KIND = "speculators_model_type"


def _hidden_layer_ids(name: str, value: Any) -> Any:
  if not isinstance(value, dict):
    checks.refuse(name, value, "an object")
  harmless.known_keys(value, name, _IDS, _PLAIN)
  return checks.fields_of(value, _IDS, name)


# Features of NVIDIA's heads that change the network, where they leave it as it is.
_PLAIN: harmless.Harmless = {
  "use_aux_hidden_state": (True,), "use_input_layernorm_in_first_layer": (True,),
  "use_last_layernorm": (True,), "use_mtp_layernorm": (False,), "next_layer_regular": (True,),
  "parallel_draft_step": (1,), "has_lm_head": (True,),
}  # fmt: skip
_IDS = {"eagle_aux_hidden_state_layer_ids": tuple[int, ...]}
_SCHEMA = _IDS | {
  "draft_vocab_size": functools.partial(checks.whole, least=1), "attention_bias": bool,
  "specjax_taps": tuple[int, ...], "eagle_config": _hidden_layer_ids,
  "target_hidden_size": functools.partial(checks.whole, least=1),
} | dict.fromkeys(OPTIONS, bool)  # fmt: skip


def fields(
  raw: Mapping[str, Any],
  more: Mapping[str, Any],
  kind: str,
  architectures: tuple[str, ...],
  directory: Path,
  model: Config,
) -> tuple[Mapping[str, Any], dict[str, Any]]:
  """(config.json in one piece, its checked values), also those that the schema `more` names.

  It raises ValueError for another kind or architecture, for another width of the target, and for a
  key that could change what the head drafts and that is not read.
  """
  published.check_architecture(raw, architectures)
  if raw.get(KIND, kind) != kind:
    raise ValueError(f"config.json: `{KIND}` must be {kind!r}, got {raw[KIND]!r}.")
  where = f"{directory}/config.json"
  raw = published.in_one_piece(raw, where)
  own = checks.fields_of(raw, {**_SCHEMA, **more}, where, ["draft_vocab_size"])
  published.check_keys(raw, where, {KIND, *_SCHEMA, *more}, _PLAIN)
  if own.get("target_hidden_size", model.width) != model.width:
    raise ValueError(
      f"config.json: `target_hidden_size` must be the target's width, {model.width}, got "
      f"{own['target_hidden_size']}."
    )
  return raw, own


def _published_layers(model: Config) -> tuple[int, ...]:
  return 2, model.layers // 2, model.layers - 3


def hidden_layers(own: Mapping[str, Any], model: Config) -> tuple[int, ...]:
  """The layers of a head's config: `specjax_taps`, which `to_json` writes, or the published ones.

  `eagle_aux_hidden_state_layer_ids` count the outputs of layers inside `eagle_config`, which
  SpecForge and SGLang write, and else the inputs, as speculators and vLLM do. It raises ValueError
  where both are there, and name other layers.
  """
  usual, nested = _published_layers(model), own.get("eagle_config") or {}
  beside = own.get("eagle_aux_hidden_state_layer_ids")
  found = usual if beside is None else beside
  if ids := nested.get("eagle_aux_hidden_state_layer_ids"):
    found = tuple(i + 1 for i in ids)
    if beside not in (None, found):
      raise ValueError(
        "config.json: `eagle_aux_hidden_state_layer_ids` must be the same inside and outside of "
        f"eagle_config, got {ids} and {beside}."
      )
  layers = own.get("specjax_taps", found)
  return () if layers == hidden_layers_of(model.layers) else layers


def layer_of(c: Any, network: Config) -> Config:
  """A layer of a head's config."""
  return dataclasses.replace(published.layer_of(network, c.mlp_width), qkv_bias=c.attention_bias)


def name_of_layer(tensors: published.Tensors) -> str:
  """What the first layer is called in a file."""
  return "layers.0" if any(name.startswith("layers.0.") for name in tensors) else "midlayer"


def layout(c: Any, network: Config, words: int, name: str) -> published.Layout:
  """The parameters of both heads; `name` is the first layer's."""
  E, inputs = network.width, len(hidden_layers_of(network.layers, c.hidden_layers))
  table: published.Layout = {
    ("fc",): [Fusion("fc.weight", (E, inputs * E))],
    ("input_norm", "weight"): [Fusion(f"{name}.input_layernorm.weight", (E,))],
    ("hidden_norm", "weight"): [Fusion(f"{name}.hidden_norm.weight", (E,))],
    ("norm", "weight"): [Fusion("norm.weight", (E,))],
    ("lm_head",): [Fusion("lm_head.weight", (words, E))],
  }
  if c.own_embedding:
    table["embedding",] = [Fusion(published.EMBEDDING, (network.vocab_size, E))]
  first = block(layer_of(c, network), ("layers", "layer_0"), name, inputs=2 * E, norm=False)
  return table | first


def gather(
  tensors: published.Tensors,
  table: published.Layout,
  words: int,
  model: Config,
  path: Path,
  dtype: DTypeLike,
  unused: Shapes | None = None,
) -> Params:
  """The parameters of a layout, and a draft vocabulary of W `words`; `unused` may be there, too."""
  tables: dict[str, tuple[int, ...]] = {"d2t": (words,), "t2d": (model.vocab_size,)}
  every = words == model.vocab_size
  params = published.gather(
    tensors,
    table,
    path,
    dtype,
    unused={**(unused or {}), **(tables if every else {})},
    others={} if every else tables,
  )
  vocabulary = _vocabulary(tensors, words, model.vocab_size, path)
  return {"params": params} | draft_vocabulary.collection(vocabulary)


def _vocabulary(tensors: published.Tensors, words: int, size: int, path) -> np.ndarray | None:
  """The target's ids i32[W] of the draft tokens, from d2t [W] and t2d [V]; None where W is V."""
  if words == size:
    if tensors.get("d2t", np.zeros(1)).any() or not tensors.get("t2d", np.ones(1)).all():
      raise ValueError(f"{path}: d2t and t2d leave tokens out, draft_vocab_size={words} does not.")
    return None
  if tensors["d2t"].dtype.kind != "i" or tensors["t2d"].dtype.kind not in "bui":
    raise ValueError(f"{path}: d2t must hold numbers, and t2d truth values.")
  ids = np.arange(words) + tensors["d2t"]
  if not np.array_equal(np.sort(ids), np.flatnonzero(tensors["t2d"])):
    raise ValueError(f"{path}: d2t and t2d name different tokens.")
  return ids.astype(np.int32)


def tables(params: Params, size: int, form: str) -> tuple[int, published.Tensors]:
  """(W, d2t and t2d of a draft vocabulary); ValueError where it has all tokens in another order."""
  vocabulary = draft_vocabulary.ids(params)
  ids = np.arange(size) if vocabulary is None else np.asarray(vocabulary, np.int64)
  offsets = ids - np.arange(len(ids))
  if len(ids) == size and offsets.any():
    raise ValueError(f"vocabulary reorders all tokens: the format {form} keeps their order.")
  every = len(ids) == size
  return len(ids), {} if every else {"d2t": offsets, "t2d": np.isin(np.arange(size), ids)}


def to_json(
  c: Any, network: Config, words: int, architecture: str, dtype: DTypeLike
) -> dict[str, Any]:
  """config.json of a head, with all options of its config that are on."""
  raw = published.layer_json(network, c, dtype)
  raw |= {
    "architectures": [architecture],
    "attention_bias": c.attention_bias,
    "draft_vocab_size": words,
  }
  raw |= {name: True for name in OPTIONS if getattr(c, name, False)}
  layers = hidden_layers_of(network.layers, c.hidden_layers)
  if layers != _published_layers(network):
    raw |= _layers_json(layers, network.layers)
  return raw


def _layers_json(layers: Sequence[int], L: int) -> dict[str, Any]:
  """The layers that are read, by our key and by those of others that have a name for them.

  vLLM counts them by their inputs, and SGLang, in eagle_config, by their outputs.
  """
  raw: dict[str, Any] = {"specjax_taps": list(layers)}
  if max(layers) < L:
    raw["eagle_aux_hidden_state_layer_ids"] = list(layers)
    if min(layers) > 0:
      ids = [i - 1 for i in layers]
      raw["eagle_config"] = {
        "use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids,
      }  # fmt: skip
  return raw
