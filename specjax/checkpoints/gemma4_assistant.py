"""Assistants of Gemma 4 on disk, as Google publishes them for transformers.

config.json has the network as `text_config`, a Gemma 4 all of whose layers share keys and values,
which are the target's here. `pre_projection` joins the embedding of a token and the state before
it, in this order, `post_projection` makes a state of the target's width, and the embedding is the
LM head. With `use_ordered_embeddings`, `masked_embedding` has centroids and the tokens of each.

Letters: E the target's width, E' the head's, V vocabulary, X centroids.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import harmless, hf_rows, published
from specjax.checkpoints.files import Tensors
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_gemma4 import GEMMA4
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.heads.gemma4_assistant import ORDER, Gemma4AssistantConfig
from specjax.heads.gemma4_assistant import gemma4_assistant as build
from specjax.models.config import Config
from specjax.models.readers import reader, source
from specjax.models.transformer import target

KIND = "gemma4_assistant"
ARCHITECTURES = ("Gemma4AssistantForCausalLM",)
_ROW = GEMMA4["gemma4_text"]
_ORDERING, _LM_HEAD = "masked_embedding.token_ordering", "lm_head.weight"
_SIZE = functools.partial(checks.whole, least=1)
_SCHEMA = {
  "backbone_hidden_size": _SIZE, "use_ordered_embeddings": bool, "num_centroids": _SIZE,
  "centroid_intermediate_top_k": _SIZE, "specjax_depth": published.COUNT,
}  # fmt: skip
_TIED: harmless.Harmless = {"tie_word_embeddings": (True,), "text_config": ...}
# What no assistant's network has.
_WITHOUT = {
  "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "enable_moe_block": False,
  "use_double_wide_mlp": False,
}  # fmt: skip
# Where an assistant differs from its target, or has no use for what the target has.
_OWN = {
  "width", "layers", "heads", "mlp_width", "max_length", "experts", "kinds", "keys_as_values",
  "source", "layer_embedding", "embedding_scale", "logit_cap",
}  # fmt: skip


def _network(raw: Mapping[str, Any], where: str) -> Config:
  """The network of `text_config`, as if its layers had keys and values of their own."""
  text = raw.get("text_config")
  if not isinstance(text, dict):
    checks.refuse(f"{where}: text_config", text, "an object")
  where = f"{where}: text_config"
  if text.get("model_type") != "gemma4_text":
    checks.refuse(f"{where}: model_type", text.get("model_type"), "'gemma4_text'")
  layers = text.get("num_hidden_layers")
  for key, value in (_WITHOUT | {"num_kv_shared_layers": layers}).items():
    if text.get(key, value) != value:
      checks.refuse(f"{where}: {key}", text[key], f"{value} in an assistant")
  own = {k: v for k, v in text.items() if k != "vocab_size_per_layer_input"}
  own |= {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
  network = hf_rows.from_json(_ROW, own, where)
  hf_rows.check_keys(_ROW, own, network, where, ("eos_token_id",))
  return network


def _check(network: Config, full: tuple[bool, ...], model: Config, where: str) -> None:
  """Raises ValueError for layers that cannot read the target's keys and values."""
  for i, whole in enumerate(full):
    own, theirs = network.of_layer(i), model.of_layer(source(model, whole))
    for field in dataclasses.fields(Config):
      found, ours = (getattr(x, field.name) for x in (own, theirs))
      if field.name not in _OWN and found != ours:
        raise ValueError(
          f"{where}: `{field.name}` of layer {i} must be the target's, {ours}, got {found}."
        )


def layout(c: Gemma4AssistantConfig, model: Config) -> published.Layout:
  """The parameters of an assistant for a target."""
  E, width = model.width, c.width or model.width
  table: published.Layout = {
    ("before",): [Fusion("pre_projection.weight", (width, 2 * E))],
    ("after",): [Fusion("post_projection.weight", (E, width))],
    ("lm_head",): [Fusion("model.embed_tokens.weight", (model.vocab_size, width))],
    ("layers", "norm", "weight"): [Fusion("model.norm.weight", (width,))],
  }
  if c.centroids:
    table["centroids",] = [Fusion("masked_embedding.centroids.weight", (c.centroids, width))]
  for i, full in enumerate(c.full):
    own = reader(model, source(model, full), width, c.heads, c.mlp_width)
    table |= block(own, ("layers", f"layer_{i}"), f"model.layers.{i}", _ROW.names)
  return table


def _order(tensors: Tensors, V: int, path: Path) -> np.ndarray:
  """i32[V], the tokens of one centroid after the other."""
  order = tensors[_ORDERING]
  if not np.array_equal(np.sort(order), np.arange(V)):
    raise ValueError(f"{path}: tensor {_ORDERING} must have every token from 0 to {V - 1} once.")
  return order.astype(np.int32)


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, one of the Gemma 4 family."""
  published.check_architecture(raw, ARCHITECTURES)
  where = f"{directory}/config.json"
  every = {**harmless.CONFIG, **harmless.HEADS, **_TIED}
  harmless.known_keys(raw, where, _SCHEMA.keys(), every)
  own = checks.fields_of(raw, _SCHEMA, where, ["backbone_hidden_size"])
  network = _network(raw, where)
  published.check_target("backbone_hidden_size", own["backbone_hidden_size"], network.vocab_size,
                         model)  # fmt: skip
  full = tuple(network.of_layer(i).window is None for i in range(network.layers))
  _check(network, full, model, where)
  config = Gemma4AssistantConfig(
    own.get("specjax_depth", Gemma4AssistantConfig.depth),
    network.width,
    network.heads,
    network.mlp_width,
    full,
  )
  if own.get("use_ordered_embeddings", False):
    count, some = own.get("num_centroids", 2048), own.get("centroid_intermediate_top_k", 32)
    config = dataclasses.replace(config, centroids=count, open_centroids=some)
  head = build(target(model), config)
  path, tensors = published.read(directory, published.FILES)
  table, V = layout(config, model), model.vocab_size
  others = {_ORDERING: (V,)} if config.centroids else {}
  copies = {_LM_HEAD: "model.embed_tokens.weight"}
  found = published.gather(tensors, table, path, dtype, copies=copies, others=others)
  params: Params = {"params": found}
  if config.centroids:
    params[ORDER] = jnp.asarray(_order(tensors, V, path))
  return LoadedHead(head, params, (), None, config, model)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its target is no Gemma 4."""
  c, model = loaded.config, loaded.network
  kinds, width = hf_rows.kinds_of(model), c.width or model.width
  own: dict[str, Any] = {
    "width": width, "layers": len(c.full), "heads": c.heads or model.heads,
    "mlp_width": c.mlp_width or model.mlp_width, "kinds": (), "experts": None,
    "layer_embedding": 0, "logit_cap": None, "embedding_scale": width**0.5,
  }  # fmt: skip
  own |= hf_rows.alike(kinds[source(model, full)] for full in c.full)
  network = dataclasses.replace(model, **own)
  text = hf_rows.to_json({"gemma4_text": _ROW}, network)
  if text is None:
    raise ValueError(f"the target of a head in the format {KIND} must be a Gemma 4.")
  text |= {"num_kv_shared_layers": network.layers, "vocab_size_per_layer_input": 0}
  tensors = scatter(loaded.params, layout(c, model), dtype)
  raw = {
    "model_type": KIND, "architectures": [*ARCHITECTURES], "text_config": text,
    "backbone_hidden_size": model.width, "use_ordered_embeddings": bool(c.centroids),
    "tie_word_embeddings": True, "torch_dtype": jnp.dtype(dtype).name, "specjax_depth": c.depth,
  }  # fmt: skip
  if c.centroids:
    raw |= {"num_centroids": c.centroids, "centroid_intermediate_top_k": c.open_centroids}
    tensors[_ORDERING] = np.asarray(loaded.params[ORDER], np.int64)
  return published.FILES[0], tensors, raw
