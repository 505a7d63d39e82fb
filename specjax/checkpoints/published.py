"""What the formats of published heads share: files, names of tensors, and the layer of EAGLE heads.

A format is a file that defines two functions, which `formats` calls:

    decode(raw, directory, model, dtype)    config.json of a directory -> a head for `model`
    encode(loaded, target_params, dtype)    a head -> (name of the file, its tensors, config.json)

`decode` raises ValueError for another architecture, a head for another target, and missing, extra
or misshapen tensors; `encode` raises it for a head that the format has no place for.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import harmless, hf_config
from specjax.checkpoints.files import Shapes, Tensors, check, read_tensors
from specjax.checkpoints.heads import MOST
from specjax.checkpoints.hf_layout import Layout, Stack
from specjax.checkpoints.stored import of_torch, shards
from specjax.models.config import Config
from specjax.trees.dynamic import Dynamic

Encoded = tuple[str, Tensors, dict[str, Any]]

COUNT = functools.partial(checks.whole, least=1, most=MOST)
"""The check of a number of heads or blocks in a config.json."""

FILES = ("model.safetensors", "pytorch_model.bin")  # where transformers keeps weights
_WINDOW: dict[str, Any] = {
  "use_sliding_window": bool, "sliding_window": functools.partial(checks.whole, least=1),
  "max_window_layers": int, "layer_types": tuple[str, ...],
}  # fmt: skip
# Keys of a layer, or of the network beside a head, which `network_of` and `window_of` read.
_NETWORK = frozenset(_WINDOW) | {
  "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
  "head_dim", "intermediate_size", "hidden_act", "mlp_bias", "rms_norm_eps", "rope_theta",
  "rope_scaling", "rope_parameters", "partial_rotary_factor", "max_position_embeddings",
  "original_max_position_embeddings",
}  # fmt: skip
TREE = Dynamic(60, 8, 10)  # of EAGLE's published code, whose depth of 7 leaves out the first level
EMBEDDING = "embed_tokens.weight"  # that a head of EAGLE may bring


def read(
  directory: pathlib.Path, names: Sequence[str], prefix: str = ""
) -> tuple[pathlib.Path, Tensors]:
  """(path, tensors) of the first of these files that is there, whole or in shards.

  Tensors are those whose names begin with `prefix`. It raises ValueError where no file is there or
  it is damaged.
  """
  for path in (directory / name for name in names):
    index = path.with_name(f"{path.name}.index.json")
    if path.is_file():
      return path, _read_one(path, prefix)
    if index.is_file():
      return index, {k: v for x in shards(index) for k, v in _read_one(x, prefix).items()}
  raise ValueError(f"{directory} has no {' and no '.join(names)}.")


def _read_one(path: pathlib.Path, prefix: str) -> Tensors:
  if path.suffix == ".safetensors":
    return read_tensors(path, prefix)
  if not path.is_file():
    raise ValueError(f"{path.parent} has no {path.name}.")
  return {k: x.read() for k, x in of_torch(path).items() if k.startswith(prefix)}


def gather(
  tensors: Tensors,
  layout: Layout,
  path: pathlib.Path,
  dtype: DTypeLike,
  *,
  copies: Mapping[str, str] | None = None,
  unused: Shapes | None = None,
  others: Shapes | None = None,
) -> Params:
  """The parameters of a layout, in `dtype`; `path` is named in messages.

  Args:
    copies: tensors that may be there and must equal another of the layout: (name, the other).
    unused: names and shapes of tensors that may be there.
    others: names and shapes of further tensors that must be there.

  Raises:
    ValueError: a tensor is missing, extra, misshapen or no float, or a copy differs.
  """
  parts = {part.name: part.shape for parts in layout.values() for part in parts}
  copies = {k: v for k, v in (copies or {}).items() if k in tensors}
  optional = {k: parts[v] for k, v in copies.items()} | dict(unused or {})
  # Old transformers wrote the rotary frequencies, which the config decides.
  there = {k: v for k, v in tensors.items() if not k.endswith("rotary_emb.inv_freq")}
  optional = {k: v for k, v in optional.items() if k in there}
  check(there, parts | optional | dict(others or {}), path)
  for name in parts:
    if not jnp.issubdtype(tensors[name].dtype, jnp.floating):
      raise ValueError(f"the dtype of tensor {name} must be a float, got {tensors[name].dtype}.")
  for name, other in copies.items():
    if not np.array_equal(tensors[name], tensors[other]):
      raise ValueError(f"tensors {name} and {other} differ, which this format has as one.")
  leaves = {}
  for key, own in layout.items():
    x = np.concatenate([part.ours(tensors[part.name]) for part in own])
    x = x.reshape(own.height, -1, x.shape[1]) if isinstance(own, Stack) else x
    leaves[key] = jnp.asarray(x, dtype)
  return unflatten_dict(leaves)


def check_architecture(raw: Mapping[str, Any], accepted: Sequence[str]) -> None:
  """Raises ValueError for a config.json whose architecture is given, and none of these."""
  said = raw.get("architectures") or accepted
  names = [said] if isinstance(said, str) else said
  if not isinstance(names, Sequence) or not any(name in accepted for name in names):
    raise ValueError(f"config.json: `architectures` must be {' or '.join(accepted)}, got {said}.")


def check_target(key: str, width: int, vocab_size: int, model: Config) -> None:
  """Raises ValueError for a width, which config.json has as `key`, or vocabulary not `model`'s."""
  for name, own, ours in (key, width, model.width), ("vocab_size", vocab_size, model.vocab_size):
    if own != ours:
      raise ValueError(f"config.json: `{name}` must be the target's, {ours}, got {own}.")


def fields(
  raw: Mapping[str, Any],
  known: Mapping[str, Any],
  directory: pathlib.Path,
  needed: Sequence[str],
  refusal: str,
) -> dict[str, Any]:
  """`checks.fields_of` a config.json; `refusal` ends the sentence where a needed key is absent."""
  for key in needed:
    if key not in raw:
      raise ValueError(f"{directory}/config.json lacks {key}: {refusal}.")
  return checks.fields_of(raw, known, f"{directory}/config.json", [k for k in needed if k in known])


def in_one_piece(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
  """A config.json of speculators without its `transformer_layer_config`, whose keys stand beside
  the others; ValueError where both have a key of the network's, and differ in it."""
  inner = raw.get("transformer_layer_config")
  if inner is None:
    return raw
  if not isinstance(inner, dict):
    checks.refuse(f"{where}: transformer_layer_config", inner, "an object")
  outer = {k: v for k, v in raw.items() if k != "transformer_layer_config"}
  for key in _NETWORK & inner.keys() & outer.keys():
    if None not in (inner[key], outer[key]) and inner[key] != outer[key]:
      raise ValueError(
        f"{where}: `{key}` must be the same inside and outside of transformer_layer_config, got "
        f"{inner[key]!r} and {outer[key]!r}."
      )
  return {**outer, **{k: v for k, v in inner.items() if v is not None or k not in outer}}


def check_keys(
  raw: Mapping[str, Any], where: str, used: Collection[str], others: harmless.Harmless | None = None
) -> None:
  """Raises ValueError for a key of a head's config.json that could change what it drafts.

  Args:
    used: keys that the format reads beside those of `network_of`.
    others: further keys that change nothing, see `checkpoints.harmless`.
  """
  every = {**harmless.CONFIG, **harmless.HEADS, **(others or {})}
  harmless.known_keys(raw, where, _NETWORK.union(used), every)


def check_base(raw: Mapping[str, Any], model: Config, where: str) -> None:
  """Raises ValueError where config.json repeats the target's, and that is not `model`."""
  for key, ours in (
    ("hidden_size", model.width),
    ("vocab_size", model.vocab_size),
    ("num_hidden_layers", model.layers),
  ):
    if raw.get(key) not in (None, ours):
      checks.refuse(f"{where}: {key}", raw[key], f"the target's, {ours}")


def window_of(raw: Mapping[str, Any], where: str) -> int | None:
  """The sliding window of a head's layers, None where they see everything.

  `layer_types` says which layers have it and, where it is absent, `use_sliding_window`; a window
  alone is that of Mistral's layers, and nothing for Qwen's. ValueError where these disagree, none
  of them is there, or layers differ.
  """
  own = checks.fields_of(raw, _WINDOW, where)
  kinds, family = set(own.get("layer_types", ())), str(raw.get("model_type"))
  if not kinds <= {"full_attention"} and kinds != {"sliding_attention"}:
    checks.refuse(
      f"{where}: layer_types",
      raw["layer_types"],
      "full_attention in all layers, or sliding_attention in all",
    )
  switch = own.get("use_sliding_window")
  slides = kinds == {"sliding_attention"} if kinds else switch
  if slides is None:
    if "sliding_window" in own and not family.startswith(("mistral", "qwen")):
      checks.refuse(
        f"{where}: sliding_window",
        own["sliding_window"],
        "a window beside use_sliding_window or layer_types, which say whether layers have it",
      )
    slides = "sliding_window" in own and family == "mistral"
  if switch not in (None, slides):
    checks.refuse(
      f"{where}: use_sliding_window", switch, f"{str(slides).lower()}, as layer_types has it"
    )
  if not slides:
    return None
  if "sliding_window" not in own:
    raise ValueError(f"{where} lacks 'sliding_window', which its layers have.")
  if not kinds and own.get("max_window_layers", 0) > 0:
    checks.refuse(
      f"{where}: max_window_layers",
      own["max_window_layers"],
      "0 without layer_types, for all layers of a head have its window",
    )
  return own["sliding_window"]


def check_no_window(raw: Mapping[str, Any], where: str) -> None:
  """Raises ValueError for a sliding window, in a format whose layers see everything."""
  if (window := window_of(raw, where)) is not None:
    checks.refuse(
      f"{where}: sliding_window", window, "null, for the layers of this format have full attention"
    )


def network_of(raw: Mapping[str, Any], model: Config, qkv_bias: bool) -> tuple[Config, int]:
  """The network whose layer an EAGLE head has, and the width of the layer's MLP (0: the target's).

  It is the target's, with the heads, rotary embedding and epsilon of the head's config.json. These
  differ in practice: EAGLE-3 for Llama 3.1 gives no `rope_theta`, and so turns by 10000 where its
  target has 500000. A head of another width or vocabulary is refused with a ValueError, and so is
  one for a target whose layers the formats cannot describe.
  """
  if model.unlike_llama:
    said = ", ".join(model.unlike_llama)
    raise ValueError(f"the target of a published head must be without {said}.")
  own = hf_config.from_json(raw)
  check_target("hidden_size", own.width, own.vocab_size, model)
  network = dataclasses.replace(
    model,
    heads=own.heads,
    kv_heads=own.kv_heads,
    head_dim=own.head_dim,
    qkv_bias=qkv_bias,
    rope_theta=own.rope_theta,
    rope_scaling=own.rope_scaling,
    rotary_dim=own.rotary_dim,
    norm_epsilon=own.norm_epsilon,
  )
  is_copy = own.mlp_width == model.mlp_width and model.experts is None
  return network, 0 if is_copy else own.mlp_width


def check_dense(network: Config) -> None:
  """Raises ValueError for a layer that copies a mixture of experts, which no format has."""
  if network.experts is not None:
    checks.refuse("experts", network.experts, "None in a published format, whose layers are dense")


def layer_of(network: Config, mlp_width: int) -> Config:
  """The layer that an EAGLE head makes of a network's config; a width of 0 is the network's."""
  if not mlp_width:
    check_dense(network)
  return dataclasses.replace(
    network,
    layers=1,
    experts=None,
    mlp_width=mlp_width or network.mlp_width,
    qk_norm=False,
    window=None,
  )


def layer_json(network: Config, config: Any, dtype: DTypeLike) -> dict[str, Any]:
  """The config.json of a Llama with the layer of an EAGLE head's config, which adds the biases."""
  layer = layer_of(network, config.mlp_width)
  raw = hf_config.to_json(dataclasses.replace(layer, tied=False, qkv_bias=False, causal=True))
  raw |= {"torch_dtype": jnp.dtype(dtype).name, "specjax_depth": config.depth}
  if (window := getattr(config, "window", None)) is not None:
    raw |= {
      "sliding_window": window,
      "use_sliding_window": True,
      "layer_types": ["sliding_attention"],
    }
  return raw
