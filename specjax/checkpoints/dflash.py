"""DFlash heads on disk, as z-lab publishes them and SpecForge and speculators train them.

config.json is that of a Qwen3 with the head's layers, a `block_size`, root included, and
`dflash_config`: which token the masks are, and which of the target's layers are read, counted by
their outputs. `fc` and `hidden_norm` make one vector of these, `layers.{i}` are the layers and
`norm` is the last norm. Embedding and LM head are the target's and in no file.

In the format of speculators, which `speculators` writes, the Qwen3 is
`transformer_layer_config`, the rest stands beside it, layers are counted by their inputs, and
there may be draft tokens as in EAGLE-3's files. Their LM head and an embedding may be there, too;
the program that trains them copies both from the target and freezes them.

Letters: L the target's layers, V vocabulary, W draft vocabulary.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import eagle3_file, harmless, hf_config, published
from specjax.checkpoints.heads import MOST, LoadedHead
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.heads.context_block import ContextBlockConfig, layers_read
from specjax.heads.dflash import DFlashConfig
from specjax.heads.dflash import dflash as build
from specjax.models.config import Config
from specjax.models.transformer import target

ARCHITECTURES = ("DFlashDraftModel", "DFlashSpeculator")
_SCHEMA = {
  "num_hidden_layers": published.COUNT,
  "layer_types": tuple[str, ...],
  "block_size": functools.partial(checks.whole, least=2, most=MOST + 1),
}
_OWN = {
  "mask_token_id": int,
  "target_layer_ids": tuple[int, ...],
  "block_size": _SCHEMA["block_size"],
}
_OF_SPECULATORS = _SCHEMA | {
  "mask_token_id": int,
  "aux_hidden_state_layer_ids": tuple[int, ...],
  "draft_vocab_size": functools.partial(checks.whole, least=1),
  "sample_from_anchor": bool,
}
# Keys of either object that change the published network, at the values that leave it as it is.
_PLAIN: harmless.Harmless = {
  "is_causal": (False,), "causal": (False,), "attention_bias": (False,),
  "use_qk_norm": (True,), "use_aux_hidden_state": (True,),
  "input_embedding_scale": (1,), "output_multiplier": (1,), "final_logit_softcapping": (0,),
  "projector_type": ("dflash",), "shift_label": (False,),
}  # fmt: skip


def _layer(c: ContextBlockConfig, network: Config) -> Config:
  return dataclasses.replace(published.layer_of(network, c.mlp_width), qk_norm=True)


def layout(c: ContextBlockConfig, network: Config) -> published.Layout:
  """The parameters of DFlash's network."""
  E, inputs = network.width, len(layers_read(network.layers, c))
  table: published.Layout = {
    ("fc",): [Fusion("fc.weight", (E, inputs * E))],
    ("context_norm", "weight"): [Fusion("hidden_norm.weight", (E,))],
    ("norm", "weight"): [Fusion("norm.weight", (E,))],
  }
  for i in range(c.layers):
    table |= block(_layer(c, network), (f"layers_{i}", "layer_0"), f"layers.{i}")
  return table


class Said(NamedTuple):
  """What config.json says; `raw` is that of the Qwen3, and the layers are counted by inputs."""

  raw: Mapping[str, Any]
  block_size: int
  layers: int
  hidden_layers: tuple[int, ...]
  mask_token: int
  words: int | None  # W
  from_root: bool = False


def _check_layers(name: str, ids: Sequence[int], most: int) -> None:
  for i in ids:
    checks.whole(name, i, 0, most, note="not the last layer's output")


def of_zlab(
  raw: Mapping[str, Any],
  where: str,
  L: int,
  more: Mapping[str, Any] | None = None,
  plain: harmless.Harmless | None = None,
) -> tuple[Said, dict[str, Any]]:
  """What config.json says, and its `dflash_config`, of which keys of `more` are read, too, and
  those of `plain` change nothing at these values."""
  inner = raw.get("dflash_config")
  if not isinstance(inner, dict):
    checks.refuse(f"{where}: dflash_config", inner, "an object")
  published.check_keys(raw, where, {"dflash_config", "num_target_layers", *_SCHEMA}, _PLAIN)
  every = {**harmless.CONFIG, **harmless.HEADS, **_PLAIN, **(plain or {})}
  schema = _OWN | dict(more or {})
  harmless.known_keys(inner, f"{where}: dflash_config", {"num_target_layers", *schema}, every)
  for number in (raw.get("num_target_layers"), inner.get("num_target_layers")):
    if number not in (None, L):
      checks.refuse(f"{where}: num_target_layers", number, f"{L}, the target's")
  outer = checks.fields_of(raw, _SCHEMA, where, ["num_hidden_layers"])
  needed = [key for key in _OWN if key != "block_size" or key not in outer]
  own = outer | checks.fields_of(inner, schema, f"{where}: dflash_config", needed)
  _check_layers(f"{where}: target_layer_ids", own["target_layer_ids"], L - 2)
  layers = tuple(i + 1 for i in own["target_layer_ids"])
  shape = own["block_size"], own["num_hidden_layers"], layers, own["mask_token_id"]
  return Said(raw, *shape, None), own


def _of_speculators(raw: Mapping[str, Any], where: str, L: int) -> Said:
  inner = raw.get("transformer_layer_config")
  if not isinstance(inner, dict):
    checks.refuse(f"{where}: transformer_layer_config", inner, "an object")
  raw = published.in_one_piece(raw, where)
  published.check_keys(raw, where, {eagle3_file.KIND, *_OF_SPECULATORS}, _PLAIN)
  needed = [key for key in _OF_SPECULATORS if key not in ("layer_types", "sample_from_anchor")]
  own = checks.fields_of(raw, _OF_SPECULATORS, where, needed)
  layers = own["aux_hidden_state_layer_ids"]
  _check_layers(f"{where}: aux_hidden_state_layer_ids", layers, L - 1)
  return Said(
    raw,
    own["block_size"],
    own["num_hidden_layers"],
    layers,
    own["mask_token_id"],
    own["draft_vocab_size"],
    own.get("sample_from_anchor", False),
  )


def network_of(raw: Mapping[str, Any], where: str, model: Config) -> tuple[Config, int]:
  """`published.network_of` of a Qwen3 without windows."""
  published.check_no_window(raw, where)
  network, mlp_width = published.network_of(raw, model, qkv_bias=False)
  return dataclasses.replace(network, qk_norm=True), mlp_width


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, which drafts chains, of `block_size` - 1 tokens at most.

  The output of the target's last layer is refused: programs differ in whether it is normed.
  """
  published.check_architecture(raw, ARCHITECTURES)
  where = f"{directory}/config.json"
  nested, L = eagle3_file.KIND in raw, model.layers
  said = _of_speculators(raw, where, L) if nested else of_zlab(raw, where, L)[0]
  network, mlp_width = network_of(said.raw, where, model)
  config = DFlashConfig(
    said.block_size - (not said.from_root),
    said.layers,
    said.hidden_layers,
    mlp_width,
    said.mask_token,
    from_root=said.from_root,
  )
  path, tensors = published.read(directory, published.FILES)
  head, table, V = build(target(network), config), layout(config, network), model.vocab_size
  if said.words is None:
    params: Params = {"params": published.gather(tensors, table, path, dtype)}
  else:
    frozen = {"lm_head.weight": (said.words, model.width), published.EMBEDDING: (V, model.width)}
    params = eagle3_file.gather(tensors, table, said.words, model, path, dtype, unused=frozen)
  return LoadedHead(head, params, (), None, config, network)


def check_writable(config: ContextBlockConfig, network: Config, form: str, first: int) -> None:
  """Raises ValueError for a head that no published format of this network has a place for; `first`
  is the lowest of the target's layers whose input the format `form` can name."""
  if config.mask_token is None:
    raise ValueError(
      f"mask_token=None: the format {form} has the embedding of a token as its mask."
    )
  if network.qkv_bias or not network.qk_norm:
    raise ValueError(
      f"`qk_norm` must be True and `qkv_bias` False for the format {form}, got {network.qk_norm} "
      f"and {network.qkv_bias}."
    )
  if config.window is not None:
    raise ValueError(f"`window` must be None for the format {form}, got {config.window}.")
  taps = layers_read(network.layers, config)
  if not all(first <= i < network.layers for i in taps):
    raise ValueError(
      f"`hidden_layers` must be between {first} and {network.layers - 1} for the format {form}, as "
      f"each is another layer's input, got {taps}."
    )


def network_json(config: ContextBlockConfig, network: Config, dtype: DTypeLike) -> dict[str, Any]:
  """The config.json of a Qwen3 with the head's layers."""
  layers = dataclasses.replace(
    _layer(config, network), layers=config.layers, tied=False, causal=True
  )
  return hf_config.to_json(layers) | {"torch_dtype": jnp.dtype(dtype).name}


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its mask is no token, its layers are not Qwen3's or have a window, the
  root guesses, or it reads the target's embeddings or last output."""
  config, network = loaded.config, loaded.network
  check_writable(config, network, "dflash", first=1)
  if config.from_root:
    raise ValueError("`from_root` must be False for the format dflash, got True.")
  tensors = scatter(loaded.params, layout(config, network), dtype)
  return published.FILES[0], tensors, zlab_json(ARCHITECTURES[0], config, network, dtype)


def zlab_json(
  architecture: str, config: ContextBlockConfig, network: Config, dtype: DTypeLike, **more: Any
) -> dict[str, Any]:
  """What `of_zlab` reads, with `more` in `dflash_config`."""
  taps = layers_read(network.layers, config)
  ids = {"mask_token_id": config.mask_token, "target_layer_ids": [i - 1 for i in taps]}
  return network_json(config, network, dtype) | {
    "architectures": [architecture],
    "block_size": config.depth + (not config.from_root),
    "dflash_config": ids | more,
    "num_target_layers": network.layers,
  }
