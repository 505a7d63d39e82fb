"""P-EAGLE heads on disk, as SpecForge and speculators train them and vLLM reads them.

The files are those of EAGLE-3, see `eagle3_file`, with more layers, `layers.{i}`, of which the
first is EAGLE-3's, and `mask_hidden` [1, 1, inputs * E], which stands for the target's states in a
mask. A mask's token is `mask_token_id`, which others call `ptd_token_id` or `pard_token`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import eagle3_file, published
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import Fusion, block, scatter
from specjax.heads.hidden_layers import hidden_layers_of
from specjax.heads.peagle import PEagleConfig
from specjax.heads.peagle import peagle as build
from specjax.models.config import Config
from specjax.models.transformer import target

ARCHITECTURES = ("PEagleDraftModel", "PEagleSpeculator", "PeagleLlamaForCausalLM")
_ACCEPTED = (*ARCHITECTURES, "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
MASK_TOKENS = ("mask_token_id", "ptd_token_id", "pard_token")
_DEPTH = 8  # of the programs that train these heads, where config.json does not say it
_MASK = "mask_hidden"


def _proposed(name: str, value: Any) -> int:
  """How many tokens the first proposal method of `speculators_config` has."""
  methods = value.get("proposal_methods") if isinstance(value, dict) else None
  if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
    checks.refuse(name, value, "an object with a list of proposal_methods")
  return published.COUNT(name, methods[0].get("speculative_tokens", _DEPTH))


# Where D is said, the first of them that is there.
_DEPTHS = {"num_depths": published.COUNT, "para_depths": published.COUNT,
           "speculators_config": _proposed, "specjax_depth": published.COUNT}  # fmt: skip
_SCHEMA = {"num_hidden_layers": published.COUNT} | _DEPTHS | dict.fromkeys(MASK_TOKENS, int)


def _layout(c: PEagleConfig, network: Config, words: int, name: str) -> published.Layout:
  """The parameters; `name` is the first layer's."""
  inputs = len(hidden_layers_of(network.layers, c.hidden_layers))
  layout = eagle3_file.layout(c, network, words, name)
  layout["mask_hidden",] = [Fusion(_MASK, (inputs * network.width,))]
  for i in range(1, c.layers):
    layer = eagle3_file.layer_of(c, network)
    layout |= block(layer, ("layers", f"layer_{i}"), f"layers.{i}")
  return layout


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, which drafts chains of the depth that it was trained for."""
  raw, own = eagle3_file.fields(raw, _SCHEMA, "peagle", _ACCEPTED, directory, model)
  found = sorted({own[key] for key in MASK_TOKENS if key in own})
  if not found:
    raise ValueError(
      f"{directory}/config.json names no mask: it lacks {' and '.join(MASK_TOKENS)}."
    )
  if len(found) > 1:
    raise ValueError(
      f"{directory}/config.json must name one mask by {', '.join(MASK_TOKENS)}, got {found}."
    )
  for name in eagle3_file.OPTIONS[1:]:
    if own.get(name):
      checks.refuse(f"config.json: {name}", True, "false in the format peagle")
  network, mlp_width = published.network_of(raw, model, model.qkv_bias)
  path, tensors = published.read(directory, published.FILES)
  config = PEagleConfig(
    next((own[key] for key in _DEPTHS if key in own), _DEPTH),
    own.get("num_hidden_layers", 1),
    found[0],
    eagle3_file.hidden_layers(own, model),
    mlp_width,
    own.get("attention_bias", False),
    published.EMBEDDING in tensors,
    own.get("norm_before_residual", False),
    published.window_of(raw, f"{directory}/config.json"),
  )
  head, words = build(target(network), config), own["draft_vocab_size"]
  if _MASK in tensors:  # programs differ in how many axes of one it has in front
    tensors[_MASK] = tensors[_MASK].reshape(-1)
  layout = _layout(config, network, words, eagle3_file.name_of_layer(tensors))
  params = eagle3_file.gather(tensors, layout, words, model, path, dtype)
  return LoadedHead(head, params, (), None, config, network)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head; ValueError where its draft vocabulary has all tokens, not in the target's order."""
  config, network = loaded.config, loaded.network
  words, tables = eagle3_file.tables(loaded.params, network.vocab_size, "peagle")
  tensors = scatter(loaded.params, _layout(config, network, words, "layers.0"), dtype)
  tensors[_MASK] = tensors[_MASK].reshape(1, 1, -1)
  raw = eagle3_file.to_json(config, network, words, ARCHITECTURES[0], dtype)
  if config.window is not None:
    raw["layer_types"] *= config.layers
  return (
    published.FILES[0],
    tensors | tables,
    raw
    | {
      "num_hidden_layers": config.layers,
      "num_depths": config.depth,
      **dict.fromkeys(MASK_TOKENS[:2], config.mask_token),
    },
  )
