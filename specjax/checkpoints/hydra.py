"""Hydra heads on disk, with the tensor names of zankner/Hydra.

`hydra_mlp.{h}.{i}` are the residual blocks of head h, `hydra_lm_head.{h}` its vocabulary matrix
and bias. In Hydra++ ("prefix-mlp") a dropout, which has a number but no tensor, precedes every
block and vocabulary matrix, and the layer is `prefix_embeding_layer` (so spelled). The blocks after
a head's first are one module, which files repeat with equal values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints import harmless, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.heads.hydra import HydraConfig
from specjax.heads.hydra import hydra as build
from specjax.models.config import Config
from specjax.models.transformer import target

_FILES = ("hydra_lm_head.safetensors", "hydra_lm_head.pt")
_KEYS = (
  "hydra_num_heads", "hydra_num_layers", "hydra_head_arch", "grounded_heads", "hidden_state_offset"
)  # fmt: skip
_PREFIX = {"mlp": False, "prefix-mlp": True}
_LAYER = "prefix_embeding_layer"


def _layout(c: HydraConfig, model: Config) -> tuple[published.Layout, dict[str, str]]:
  """The parameters, and the names of repeated tensors with those that they repeat."""
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
    published.check_dense(model)
    layout |= block(model, ("prefix", "layers", "layer_0"), f"{_LAYER}.layers.0")
    layout["prefix", "norm", "weight"] = [Fusion(f"{_LAYER}.norm.weight", (E,))]
  return layout, copies


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """Heads for the target `model`.

  The target's embedding, which files hold because the module refers to it, is dropped, and so is
  that of the prefix layer, which nothing reads; their shapes are checked. Heads that do not see
  tokens (`grounded_heads`) or that read another layer (`hidden_state_offset`) are refused.
  """
  where = f"{directory}/config.json"
  counts = dict.fromkeys(_KEYS[:2], published.COUNT)
  own = published.fields(raw, counts, directory, _KEYS, "these are no Hydra heads")
  published.check_keys(raw, where, _KEYS, harmless.OF_TARGET)
  published.check_base(raw, model, where)
  for key, accepted in (
    ("hydra_head_arch", tuple(_PREFIX)),
    ("grounded_heads", (True,)),
    ("hidden_state_offset", (0,)),
  ):
    if raw[key] not in accepted:
      raise ValueError(
        f"config.json: `{key}` must be {' or '.join(map(str, accepted))}, got {raw[key]!r}."
      )
  prefix = _PREFIX[raw["hydra_head_arch"]]
  config = HydraConfig(own["hydra_num_heads"], own["hydra_num_layers"], prefix=prefix)
  layout, copies = _layout(config, model)
  path, tensors = published.read(directory, _FILES)
  names = ("input_embed_fn.weight", *([f"{_LAYER}.embed_tokens.weight"] if prefix else []))
  unused = dict.fromkeys(names, (model.vocab_size, model.width))
  params = published.gather(tensors, layout, path, dtype, copies=copies, unused=unused)
  return LoadedHead(build(target(model), config), {"params": params}, (), None, config, model)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """Heads; ValueError where they share a vocabulary matrix or have untied blocks."""
  config = loaded.config
  if config.shared:
    raise ValueError("shared=True: the format hydra has a vocabulary matrix for every head.")
  if config.blocks > 2 and not config.tied_blocks:
    raise ValueError("tied_blocks=False: the format hydra has the blocks after the first as one.")
  layout, copies = _layout(config, loaded.network)
  tensors = scatter(loaded.params, layout, dtype)
  arch = {prefix: name for name, prefix in _PREFIX.items()}[config.prefix]
  said = (config.depth, config.blocks, arch, True, 0)
  repeated = {name: tensors[other] for name, other in copies.items()}
  return _FILES[0], tensors | repeated, dict(zip(_KEYS, said, strict=True))
