"""MTP layers that targets carry in their own checkpoints, as MiMo does.

config.json is the target's, with `num_nextn_predict_layers`, and `model.mtp_layers.0` lies beside
the target's layers. `input_proj` joins state and embedding, in this order, `token_layernorm` and
`hidden_layernorm` are the norms before it, and `final_layernorm` precedes the target's LM head.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import hf_config, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import MIMO, mtp_layer, scatter
from specjax.heads.mtp import MTPConfig
from specjax.heads.mtp import mtp as build
from specjax.models.config import Config
from specjax.models.transformer import target

# Of the target's, which `hf.load` reads, or of a head's.
_OTHERS = ("specjax_depth", "eos_token_id", "specjax_template", "base_model_name_or_path",
           "trained_for")  # fmt: skip
_SCHEMA = {"num_nextn_predict_layers": published.COUNT, "specjax_depth": published.COUNT}


def _other_order(params: Params) -> Params:
  """The module with the two halves of its projection's columns exchanged."""
  projection = params["projection"]
  return params | {"projection": jnp.roll(projection, projection.shape[1] // 2, 1)}


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, of whose checkpoint only the MTP layer is read.

  The layer was trained for the next token but one, and is used again for later ones.
  """
  where = f"{directory}/config.json"
  if raw.get("model_type") != "mimo":
    checks.refuse(
      f"{where}: model_type", raw.get("model_type"), "'mimo', the family whose MTP layer is read"
    )
  own = checks.fields_of(raw, _SCHEMA, where)
  if own["num_nextn_predict_layers"] != 1:
    checks.refuse(f"{where}: num_nextn_predict_layers", own["num_nextn_predict_layers"], "1")
  network = hf_config.from_json(raw, where)
  hf_config.check_keys(raw, network, where, _OTHERS)
  if network.window is not None:
    checks.refuse(
      f"{where}: sliding_window", network.window, "null, for the MTP layer has full attention"
    )
  for field in dataclasses.fields(network):
    found, ours = (getattr(x, field.name) for x in (network, model))
    if found != ours and field.name != "max_length":
      raise ValueError(f"config.json: `{field.name}` must be the target's, {ours}, got {found}.")
  path, tensors = published.read(directory, published.FILES, MIMO["mtp"].removesuffix("0"))
  params = published.gather(tensors, mtp_layer(model), path, dtype)
  config = MTPConfig(own.get("specjax_depth", MTPConfig().depth), before_norm=True)
  head = build(target(model), config)
  return LoadedHead(head, {"params": _other_order(params)}, (), None, config, model)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head's tensors alone, to lie beside the target's; ValueError where MiMo has no such layer."""
  config, network = loaded.config, loaded.network
  if not config.before_norm:
    raise ValueError(
      "before_norm=False: the format mtp has MiMo's layer, which reads states "
      "before the target's final norm."
    )
  raw = hf_config.to_json(network)
  if raw["model_type"] != "qwen2" or network.window is not None:
    checks.refuse(
      "target",
      raw["model_type"],
      "qwen2 without a sliding window, MiMo's network, in the format mtp",
    )
  tensors = scatter({"params": _other_order(loaded.params["params"])}, mtp_layer(network), dtype)
  return (
    published.FILES[0],
    tensors,
    raw
    | {
      "model_type": "mimo",
      "architectures": ["MiMoForCausalLM"],
      "num_nextn_predict_layers": 1,
      "torch_dtype": jnp.dtype(dtype).name,
      "specjax_depth": config.depth,
    },
  )
