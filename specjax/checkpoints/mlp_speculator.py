"""MLPSpeculators on disk, as IBM's fms-extras publishes them for transformers.

`speculator.emb.{i}`, `proj.{i}`, `ln.{i}` and `head.{i}` belong to step i. Where weights are tied,
files may repeat the shared ones under later steps, with equal values, or leave them out.
"""

import pathlib
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import schema
from specjax.base import Params
from specjax.checkpoints import published
from specjax.checkpoints.heads import Loaded, read_config
from specjax.checkpoints.hf_layout import Fusion
from specjax.drafters.mlp_speculator import MLPSpeculatorConfig
from specjax.drafters.mlp_speculator import mlp_speculator as build
from specjax.models.config import Config
from specjax.models.transformer import target

_FILES = ("model.safetensors", "pytorch_model.bin")
_KEYS = ("n_predict", "emb_dim", "inner_dim", "vocab_size")
_SCHEMA = {
  "n_predict": published.COUNT, "emb_dim": int, "inner_dim": int, "vocab_size": int,
  "tie_weights": bool, "scale_input": bool,
}  # fmt: skip
_ARCHITECTURE = "MLPSpeculatorPreTrainedModel"


def _layout(c: MLPSpeculatorConfig, model: Config) -> tuple[published.Layout, dict[str, str]]:
  """The parameters, and the repeated tensors."""
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


def recognises(raw: dict[str, Any]) -> bool:
  """Whether a config.json is of this format."""
  return raw.get("model_type") == "mlp_speculator"


def load(directory: str | pathlib.Path, model: Config, dtype: DTypeLike = jnp.float32) -> Loaded:
  """A head for the target `model`.

  `top_k_tokens_per_head` and `n_candidates`, which describe a search, are not read.

  Raises:
    ValueError: another architecture, a head for another target, or missing, extra or misshapen
      tensors.
  """
  raw = read_config(directory)
  for key in _KEYS:
    if key not in raw:
      raise ValueError(f"{directory}/config.json lacks {key}: this is no MLPSpeculator.")
  own = schema.fields(raw, _SCHEMA, f"{directory}/config.json", _KEYS)
  published.check_architecture(raw, [_ARCHITECTURE])
  for key, ours in (("emb_dim", model.width), ("vocab_size", model.vocab_size)):
    if own[key] != ours:
      raise ValueError(f"{key}={own[key]} in config.json: accepted is the target's, {ours}.")
  config = MLPSpeculatorConfig(
    own["n_predict"], own["inner_dim"], own.get("tie_weights", False), own.get("scale_input", False)
  )
  layout, copies = _layout(config, model)
  path, tensors = published.read(directory, _FILES)
  params = published.gather(tensors, layout, path, dtype, copies=copies)
  return Loaded(build(target(model), config), {"params": params}, (), None, config, model)


def save(
  directory: str | pathlib.Path,
  config: MLPSpeculatorConfig,
  params: Params,
  model: Config,
  *,
  base: str,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes what `load` reads. `base` names the target, `model` is its network.

  Raises:
    ValueError: a draft vocabulary, or a weight that is not finite in `dtype`.
  """
  published.refuse_vocabulary(params, "mlp_speculator")
  raw = {
    "architectures": [_ARCHITECTURE],
    "model_type": "mlp_speculator",
    "base_model_name_or_path": base,
    "n_predict": config.depth,
    "emb_dim": model.width,
    "inner_dim": config.inner_width,
    "vocab_size": model.vocab_size,
    "tie_weights": config.tied,
    "scale_input": config.scale_input,
    "top_k_tokens_per_head": [max(5 - i, 1) for i in range(config.depth)],
    "n_candidates": 5,
    "torch_dtype": jnp.dtype(dtype).name,
  }
  layout, copies = _layout(config, model)
  tensors = published.scatter(params, layout, dtype, copies)
  published.write(directory, _FILES[0], tensors, raw)
