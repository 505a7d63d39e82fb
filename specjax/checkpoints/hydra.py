"""Hydra heads on disk, with the tensor names of zankner/Hydra.

`hydra_mlp.{h}.{i}` are the residual blocks of head h, `hydra_lm_head.{h}` its vocabulary matrix
and bias. Hydra++ ("prefix-mlp") has a dropout, which is no tensor but a number, before every block
and vocabulary matrix, and its layer under `prefix_embeding_layer` (so spelled). Blocks after a
head's first are one module: files repeat it, with equal values.
"""

import pathlib
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import schema
from specjax.base import Params
from specjax.checkpoints import layer, published
from specjax.checkpoints.heads import Loaded, read_config
from specjax.checkpoints.hf_layout import Fusion
from specjax.drafters.hydra import HydraConfig
from specjax.drafters.hydra import hydra as build
from specjax.models.config import Config
from specjax.models.transformer import target

_FILES = ("hydra_lm_head.safetensors", "hydra_lm_head.pt")
_KEYS = (
  "hydra_num_heads", "hydra_num_layers", "hydra_head_arch", "grounded_heads", "hidden_state_offset"
)  # fmt: skip
_PREFIX = {"mlp": False, "prefix-mlp": True}
_LAYER = "prefix_embeding_layer"


def _layout(c: HydraConfig, model: Config) -> tuple[published.Layout, dict[str, str]]:
  """The parameters, and the repeated tensors."""
  E, V = model.width, model.vocab_size
  layout: published.Layout = {}
  copies: dict[str, str] = {}
  for d in range(1, c.depth + 1):
    names = [f"hydra_mlp.{d - 1}.{2 * i + 1 if c.prefix else i}" for i in range(c.blocks)]
    lm_head = f"hydra_lm_head.{d - 1}{'.1' if c.prefix else ''}"
    pairs = [("residual", "residual_bias", f"{names[0]}.res_connection", (E, (d + 1) * E))]
    pairs += [("block_0", "bias_0", f"{names[0]}.linear", (E, (d + 1) * E))]
    pairs += [("block_1", "bias_1", f"{name}.linear", (E, E)) for name in names[1:2]]
    pairs += [("lm_head", "lm_bias", lm_head, (V, E))]
    for weight, bias, name, shape in pairs:
      layout[f"head_{d}", weight] = [Fusion(f"{name}.weight", shape)]
      layout[f"head_{d}", bias] = [Fusion(f"{name}.bias", shape[:1])]
    for name in names[2:]:
      copies |= {f"{name}.linear.{x}": f"{names[1]}.linear.{x}" for x in ("weight", "bias")}
  if c.prefix:
    layout |= layer.block(("prefix", "layers", "layer_0"), f"{_LAYER}.layers.0", model)
    layout["prefix", "norm", "weight"] = [Fusion(f"{_LAYER}.norm.weight", (E,))]
  return layout, copies


def recognises(raw: dict[str, Any]) -> bool:
  """Whether a config.json is of this format."""
  return "hydra_num_heads" in raw


def load(directory: str | pathlib.Path, model: Config, dtype: DTypeLike = jnp.float32) -> Loaded:
  """Heads for the target `model`.

  The target's embedding, which files hold because the module refers to it, is dropped, as is the
  one of the prefix layer, which nothing reads; their shapes are checked.

  Raises:
    ValueError: heads of another architecture, that do not see tokens (`grounded_heads`) or that
      read another layer (`hidden_state_offset`); missing, extra or misshapen tensors.
  """
  raw = read_config(directory)
  for key in _KEYS:
    if key not in raw:
      raise ValueError(f"{directory}/config.json lacks {key}: these are no Hydra heads.")
  arch = raw["hydra_head_arch"]
  for key, accepted in (
    ("hydra_head_arch", tuple(_PREFIX)), ("grounded_heads", (True,)), ("hidden_state_offset", (0,))
  ):  # fmt: skip
    if raw[key] not in accepted:
      raise ValueError(f"{key}={raw[key]!r} in config.json: accepted is "
                       f"{' or '.join(map(str, accepted))}.")  # fmt: skip
  own = schema.fields(
    raw, dict.fromkeys(_KEYS[:2], published.COUNT), f"{directory}/config.json", _KEYS[:2]
  )
  config = HydraConfig(own["hydra_num_heads"], own["hydra_num_layers"], prefix=_PREFIX[arch])
  layout, copies = _layout(config, model)
  path, tensors = published.read(directory, _FILES)
  embedding = (model.vocab_size, model.width)
  unused = {"input_embed_fn.weight": embedding}
  if config.prefix:
    unused[f"{_LAYER}.embed_tokens.weight"] = embedding
  params = published.gather(tensors, layout, path, dtype, copies=copies, unused=unused)
  return Loaded(build(target(model), config), {"params": params}, (), None, config, model)


def save(
  directory: str | pathlib.Path,
  config: HydraConfig,
  params: Params,
  model: Config,
  *,
  base: str,
  dtype: DTypeLike = jnp.float16,
) -> None:
  """Writes what `load` reads. `base` names the target, `model` is its network.

  Raises:
    ValueError: a form that was never published, or a weight that is not finite in `dtype`.
  """
  published.refuse_vocabulary(params, "hydra")
  if config.shared:
    raise ValueError("shared=True: the format hydra has a vocabulary matrix for every head.")
  if config.blocks > 2 and not config.tied_blocks:
    raise ValueError("tied_blocks=False: the format hydra has the blocks after the first as one.")
  layout, copies = _layout(config, model)
  arch = {prefix: name for name, prefix in _PREFIX.items()}[config.prefix]
  said = (config.depth, config.blocks, arch, True, 0)
  raw = dict(zip(_KEYS, said, strict=True)) | {"base_model_name_or_path": base}
  tensors = published.scatter(params, layout, dtype, copies)
  published.write(directory, _FILES[0], tensors, raw)
