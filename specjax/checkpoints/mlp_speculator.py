"""MLPSpeculators on disk, as IBM's fms-extras publishes them for transformers.

`speculator.emb.{i}`, `proj.{i}`, `ln.{i}` and `head.{i}` belong to step i. Where weights are tied,
files may repeat the shared ones under later steps, with equal values, or leave them out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints import published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, scatter
from specjax.heads.mlp_speculator import MLPSpeculatorConfig
from specjax.heads.mlp_speculator import mlp_speculator as build
from specjax.models.config import Config
from specjax.models.transformer import target

_KEYS = ("n_predict", "emb_dim", "inner_dim", "vocab_size")
_SCHEMA = {
  "n_predict": published.COUNT, "emb_dim": int, "inner_dim": int, "vocab_size": int,
  "tie_weights": bool, "scale_input": bool,
}  # fmt: skip
_SEARCH = dict.fromkeys(("top_k_tokens_per_head", "n_candidates"), ...)
_ARCHITECTURE = "MLPSpeculatorPreTrainedModel"


def _layout(c: MLPSpeculatorConfig, model: Config) -> tuple[published.Layout, dict[str, str]]:
  """The parameters, and the names of repeated tensors with those that they repeat."""
  V, inner = model.vocab_size, c.inner_width or model.width
  layout: published.Layout = {}
  copies = {}
  for i in range(c.depth):
    own = {
      ("projection",): (f"proj.{i}.weight", (inner, inner if i else model.width)),
      ("embedding",): (f"emb.{i}.weight", (V, inner)),
      ("norm", "weight"): (f"ln.{i}.weight", (inner,)),
      ("norm_bias",): (f"ln.{i}.bias", (inner,)),
      ("lm_head",): (f"head.{i}.weight", (V, inner)),
    }
    for key, (name, shape) in own.items():
      first = (1 if key == ("projection",) else 0) if c.tied else i
      if i > first:
        kind, _, rest = name.split(".")
        copies[f"speculator.{name}"] = f"speculator.{kind}.{first}.{rest}"
      else:
        layout[(f"step_{i + 1}", *key)] = [Fusion(f"speculator.{name}", shape)]
  return layout, copies


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`.

  `top_k_tokens_per_head` and `n_candidates`, which describe a search, are not read.
  """
  own = published.fields(raw, _SCHEMA, directory, _KEYS, "this is no MLPSpeculator")
  published.check_architecture(raw, [_ARCHITECTURE])
  published.check_keys(raw, f"{directory}/config.json", _SCHEMA, _SEARCH)
  published.check_target("emb_dim", own["emb_dim"], own["vocab_size"], model)
  config = MLPSpeculatorConfig(
    own["n_predict"], own["inner_dim"], own.get("tie_weights", False), own.get("scale_input", False)
  )
  layout, copies = _layout(config, model)
  path, tensors = published.read(directory, published.FILES)
  params = published.gather(tensors, layout, path, dtype, copies=copies)
  return LoadedHead(build(target(model), config), {"params": params}, (), None, config, model)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; its config.json asks for a search of five candidates."""
  config, model = loaded.config, loaded.network
  raw = {
    "architectures": [_ARCHITECTURE], "model_type": "mlp_speculator", "n_predict": config.depth,
    "emb_dim": model.width, "inner_dim": config.inner_width, "vocab_size": model.vocab_size,
    "tie_weights": config.tied, "scale_input": config.scale_input,
    "top_k_tokens_per_head": [max(5 - i, 1) for i in range(config.depth)], "n_candidates": 5,
    "torch_dtype": jnp.dtype(dtype).name,
  }  # fmt: skip
  layout, copies = _layout(config, model)
  tensors = scatter(loaded.params, layout, dtype)
  return published.FILES[0], tensors | {name: tensors[other] for name, other in copies.items()}, raw
