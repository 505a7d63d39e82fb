"""MTP layers that targets carry in their own checkpoints.

config.json is the target's, and the layer lies beside the target's layers, or behind the last. A
norm of the token's embedding and one of the state before it, a projection that joins the two, a
layer of the target's kind, and a norm before the target's LM head: each family has its names for
these. MiMo's projection has the state first, and it alone reads states before the final norm.

Of several layers each is for a depth. All of them lie side by side; in Qwen's files they share the
norms and the projection (vLLM's qwen3_next_mtp.py). DeepSeek-V3's and GLM-4.5's bring copies of the
target's embedding and LM head, which are not read, and not written. Layers in few bits, as
DeepSeek-V3's are published in FP8, are widened.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from specjax import checks
from specjax.base import Params
from specjax.checkpoints import families, hf_pictures, published, quantised, stored
from specjax.checkpoints.files import Tensors
from specjax.checkpoints.heads import LoadedHead
from specjax.checkpoints.hf_layout import MIMO, Fusion, Layout, block, scatter, whole_stacks
from specjax.heads.mtp import DEEPER, MTPConfig
from specjax.heads.mtp import mtp as build
from specjax.models.config import Config
from specjax.models.transformer import target

_COUNT = "num_nextn_predict_layers"


class Place(NamedTuple):
  """Where a family keeps its layers; {depth} is the number of one, from 0, and {behind} that in a
  row with the target's.

  Attributes:
    layer: of the tensors that a layer of the target has, too.
    projection, token_norm, state_norm, norm: the others, without ".weight".
    number: the key of config.json that says how many layers there are.
    prefix: that all of its tensors have, and those of further layers.
    copies: of the target's embedding and LM head.
    before_norm: see `MTPConfig`; then the projection has the state first.
  """

  layer: str
  projection: str
  token_norm: str
  state_norm: str
  norm: str
  number: str
  prefix: str
  copies: tuple[str, ...] = ()
  before_norm: bool = False

  def of(self, model: Config, depth: int = 0) -> "Place":
    """That of a layer, for a target."""
    numbers = {"depth": depth, "behind": model.layers + depth}
    said: dict[str, Any] = {
      x: value.format(**numbers) for x, value in self._asdict().items() if isinstance(value, str)
    }
    return self._replace(**said, copies=tuple(x.format(**numbers) for x in self.copies))

  @property
  def shares(self) -> bool:
    """Whether layers share what is beside them."""
    return "{" not in self.projection


_LAYER, _BESIDE = "model.layers.{behind}", f"{MIMO['mtp']}.{{depth}}"
_BEHIND = Place(
  _LAYER, f"{_LAYER}.eh_proj", f"{_LAYER}.enorm", f"{_LAYER}.hnorm", f"{_LAYER}.shared_head.norm",
  _COUNT, f"{_LAYER}.", (f"{_LAYER}.embed_tokens.weight", f"{_LAYER}.shared_head.head.weight"),
)  # fmt: skip
_APART = Place(
  "mtp.layers.{depth}", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm",
  "mtp_num_hidden_layers", "mtp.",
)  # fmt: skip
PLACES = {
  "mimo": Place(
    _BESIDE, f"{_BESIDE}.input_proj", f"{_BESIDE}.token_layernorm", f"{_BESIDE}.hidden_layernorm",
    f"{_BESIDE}.final_layernorm", _COUNT, f"{MIMO['mtp']}.", before_norm=True,
  ),
  "deepseek_v3": _BEHIND, "glm4_moe": _BEHIND,
  "qwen3_next": _APART, "qwen3_5_text": _APART, "qwen3_5_moe_text": _APART,
}  # fmt: skip
"""By the `model_type` of the target."""
_TOWERS = ("qwen3_5", "qwen3_5_moe")  # for pictures, beside a text model of these

# Of the target's, which `hf.load` reads, or of a head's.
_OTHERS = ("specjax_depth", "eos_token_id", "specjax_template", "base_model_name_or_path",
           "trained_for", quantised.KEY)  # fmt: skip


def _of_text(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
  """The config.json of the language model."""
  has_tower = raw.get("model_type") in _TOWERS
  return hf_pictures.language_model(raw, where) if has_tower else raw


def is_format(raw: Mapping[str, Any]) -> bool:
  """Whether config.json is of a family that has such a layer."""
  return raw.get("model_type") in (*PLACES, *_TOWERS)


def layout(family: str, model: Config, count: int = 1) -> Layout:
  """The parameters of the layers of a target."""
  first = _of_one(family, model, 0)
  table = dict(first)
  for depth in range(1, count):
    own = _of_one(family, model, depth)
    name = f"{DEEPER}{depth + 1}"
    table |= {(name, *path): parts for path, parts in own.items() if parts != first[path]}
  return table


def _of_one(family: str, model: Config, depth: int) -> Layout:
  E, place = model.width, PLACES[family].of(model, depth)
  row = families.ROWS.get(family)
  table: Layout = {
    (name, "weight"): [Fusion(f"{getattr(place, name)}.weight", (E,))]
    for name in ("token_norm", "state_norm", "norm")
  }
  table["projection",] = [Fusion(f"{place.projection}.weight", (E, 2 * E))]
  own = target(model).make_layers(window=False).config
  table |= block(own, ("layers", "layer_0"), place.layer, MIMO if row is None else row.names)
  if row is None or not row.less_one:
    return table
  return {
    path: [part._replace(less=1.0) for part in parts] if path[-1] == "weight" else parts
    for path, parts in table.items()
  }


def _other_order(params: Params) -> Params:
  """The modules with the two halves of their projections' columns exchanged."""
  deeper = {k: _other_order(x) for k, x in params.items() if k.startswith(DEEPER)}
  projection = params["projection"]
  return params | deeper | {"projection": jnp.roll(projection, projection.shape[1] // 2, 1)}


def _read(
  directory: Path, raw: Mapping[str, Any], prefixes: Sequence[str], dtype: DTypeLike
) -> tuple[Path, Tensors]:
  """(path, tensors) of the names that begin so; those in few bits are widened to `dtype`."""
  if not quantised.is_read(raw):
    parts = [published.read(directory, published.FILES, x) for x in prefixes]
    return parts[0][0], {k: x for _, own in parts for k, x in own.items()}
  every = stored.of_directory(directory)
  home = {k: x for k, x in every.items() if k.startswith(tuple(prefixes))}
  few = quantised.find(home, raw, directory)
  made_of = {name for each in few.values() for name in each.files}
  tensors = {k: x.read() for k, x in home.items() if k not in made_of}
  return directory, tensors | {k: x.read(dtype) for k, x in few.items()}


def decode(raw: Mapping[str, Any], directory: Path, model: Config, dtype: DTypeLike) -> LoadedHead:
  """A head for the target `model`, of whose checkpoint only the MTP layers are read.

  The last layer is used again for tokens after its own.
  """
  where = f"{directory}/config.json"
  text = _of_text(raw, where)
  family = text.get("model_type")
  if not isinstance(family, str) or family not in PLACES:
    said = f"one of {', '.join(PLACES)}, the families whose MTP layer is read"
    checks.refuse(f"{where}: model_type", family, said)
  place = PLACES[family]
  schema = {place.number: published.COUNT, "specjax_depth": published.COUNT}
  own = checks.fields_of(text, schema, where)
  count = own.get(place.number, 1)
  kind = families.by_type(raw, where)
  network = kind.from_json(raw, where)
  kind.check_keys(raw, network, where, (*_OTHERS, place.number))
  if network.window is not None:
    checks.refuse(
      f"{where}: sliding_window", network.window, "null, for the MTP layer has full attention"
    )
  for field in dataclasses.fields(network):
    found, ours = (getattr(x, field.name) for x in (network, model))
    if found != ours and field.name != "max_length":
      raise ValueError(f"config.json: `{field.name}` must be the target's, {ours}, got {found}.")
  each = [place.of(model, depth) for depth in range(count)]
  path, tensors = _read(directory, raw, [*dict.fromkeys(x.prefix for x in each)], dtype)
  table = whole_stacks(layout(family, model, count), {k: x.shape for k, x in tensors.items()})
  copies = {name: (model.vocab_size, model.width) for x in each for name in x.copies}
  params = published.gather(tensors, table, path, dtype, unused=copies)
  depth = own.get("specjax_depth", max(MTPConfig().depth, count))
  config = MTPConfig(depth, place.before_norm, count, place.shares and count > 1)
  params = _other_order(params) if place.before_norm else params
  return LoadedHead(build(target(model), config), {"params": params}, (), None, config, model)


def encode(loaded: LoadedHead, target_params: Params, dtype: DTypeLike) -> published.Encoded:
  """A head's tensors alone, to lie beside the target's; ValueError where no family has such a layer
  for its target."""
  config, network = loaded.config, loaded.network
  raw = families.to_json(network)
  is_mimo = raw["model_type"] == "qwen2" and network.window is None
  family = "mimo" if is_mimo else raw["model_type"]
  if family not in PLACES:
    checks.refuse(
      "target",
      family,
      f"qwen2 without a sliding window, MiMo's network, or {', '.join(list(PLACES)[1:])} in the "
      "format mtp",
    )
  place = PLACES[family]
  if config.before_norm != place.before_norm:
    state = "before" if place.before_norm else "after"
    raise ValueError(
      f"before_norm={config.before_norm}: the format mtp has {family}'s layer, which reads states "
      f"{state} the target's final norm."
    )
  if config.modules > 1 and config.shares != place.shares:
    raise ValueError(
      f"shares={config.shares}: in the format mtp the layers of {family} "
      f"{'share' if place.shares else 'do not share'} their norms and projection."
    )
  params = loaded.params["params"]
  params = _other_order(params) if place.before_norm else params
  if is_mimo:
    raw |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}
  raw |= {place.number: config.modules, "specjax_depth": config.depth}
  raw |= {"torch_dtype": jnp.dtype(dtype).name}
  tensors = scatter({"params": params}, layout(family, network, config.modules), dtype)
  return published.FILES[0], tensors, raw
