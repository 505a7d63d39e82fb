"""Families as rows: what a config.json says beside the sizes that all have, in and out.

A row of `ROWS` is a family. What its layers are is said by the fields of `Config`.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from specjax import checks
from specjax.checkpoints import harmless, hf_config, hf_layout, hf_rope
from specjax.checkpoints.hf_layout import Layout, Names
from specjax.models.config import Config, Kind

_SIZES = (
  "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
  "head_dim", "intermediate_size", "max_position_embeddings", "rope_theta", "rms_norm_eps",
  "tie_word_embeddings", "hidden_act", "mlp_bias",
)  # fmt: skip
FULL, LOCAL = "full_attention", "sliding_attention"
_ROPE = ("rope_scaling", "rope_parameters", "original_max_position_embeddings")


class Found(NamedTuple):
  """A config.json: as it is, its checked values, its family, and the file's name."""

  raw: Mapping[str, Any]
  known: Mapping[str, Any]
  family: str
  where: str

  def value(self, key: str, absent: Any = None) -> Any:
    """Of a key for which null is a value, too."""
    return self.known.get(key, None if key in self.raw else absent)

  def rope(self, of: str = "", theta: float | None = None) -> Kind:
    """The rotary embedding; `of` the layers of one type, whose base may stand beside as `theta`."""
    raw, known = self.raw, self.known
    if of:
      both = raw.get("rope_parameters") or {}
      if not isinstance(both, dict) or not both.keys() <= {FULL, LOCAL}:
        checks.refuse(f"{self.where}: rope_parameters", both, f"an object of {FULL} and {LOCAL}")
      scaling = (raw.get("rope_scaling") or {}) if of == FULL else {}
      raw = {**raw, "rope_scaling": None, "rope_parameters": {**both.get(of, {}), **scaling}}
    if theta is not None:
      known = {**known, "rope_theta": theta}
    base, scaling, share = hf_rope.read(raw, known, self.family, self.where)
    width = known.get("head_dim", known["hidden_size"] // known["num_attention_heads"])
    return Kind(None, base, scaling, None if share == 1 else int(width * share))

  def by_type(self, full: Kind, local: Kind, every: int) -> dict[str, Any]:
    """Fields of `Config` for layers of two types, by `layer_types` or else full ones `every` so
    many layers."""
    layers = self.known["num_hidden_layers"]
    usual = tuple(FULL if i % every == 0 else LOCAL for i in range(1, layers + 1))
    types = self.known.get("layer_types", usual)
    if len(types) != layers or not set(types) <= {FULL, LOCAL}:
      checks.refuse(f"{self.where}: layer_types", types, f"{layers} of {FULL} and {LOCAL}")
    return alike(full if each == FULL else local for each in types)

  def sees_all(self) -> Kind:
    """The rotary embedding of all layers, of which none may have a window."""
    layers = self.known["num_hidden_layers"]
    if tuple(types := self.known.get("layer_types", (FULL,) * layers)) != (FULL,) * layers:
      checks.refuse(f"{self.where}: layer_types", types, f"{FULL} in all {layers} layers")
    return self.rope()


def alike(kinds: Any) -> dict[str, Any]:
  """Fields of `Config` for layers of kinds, which may be all alike."""
  kinds = tuple(kinds)
  return kinds[0].fields if len(set(kinds)) == 1 else {"kinds": kinds}


def kinds_of(c: Config) -> tuple[Kind, ...]:
  """The kind of every layer of a config."""
  alone = Kind(
    c.window, c.rope_theta, c.rope_scaling, c.rotary_dim, c.chunk,
    keys_as_values=c.keys_as_values, source=c.source, sparsity=c.sparsity,
  )  # fmt: skip
  return c.kinds or (alone,) * c.layers


def types_of(c: Config) -> list[str]:
  """`layer_types` of a config."""
  return [FULL if kind.window is None else LOCAL for kind in kinds_of(c)]


def first(c: Config, kind: str) -> Kind:
  """The first layer's of a type, or of any where there is none."""
  every = dict(zip(reversed(types_of(c)), reversed(kinds_of(c)), strict=True))
  return every.get(kind, kinds_of(c)[0])


_DRAFTS = 64  # layers that are read behind the last, at most


class Row(NamedTuple):
  """One family.

  Attributes:
    architecture: the class of transformers.
    names: of its tensors.
    read: config.json -> the fields of `Config` that are not sizes.
    write: config -> keys of config.json beside the sizes, and in place of some.
    keys: what `read` reads, and what its values are.
    absent: what the program takes for absent keys, where it is not what Llama's takes.
    less_one: whether tensors of norms hold w of 1 + w; in 16 bits the sum is rounded.
    idle: keys that change nothing, at these values.
    more: keys that `read` checks by itself.
    spare: tensors that are not read, with * for any letters and {} for the number of layers.
  """

  architecture: str
  names: Names
  read: Callable[[Found], dict[str, Any]]
  write: Callable[[Config], dict[str, Any]]
  keys: Mapping[str, Any]
  absent: Mapping[str, Any] = {}
  less_one: bool = False
  idle: Mapping[str, Any] = {}
  more: tuple[str, ...] = ()
  spare: tuple[str, ...] = ()


def from_json(row: Row, raw: Mapping[str, Any], where: str = "config.json") -> Config:
  """The Config that config.json describes; ValueError as of `hf_config.from_json`."""
  schema = {**{key: hf_config.SCHEMA[key] for key in _SIZES}, **row.keys}
  needed = [key for key in hf_config.NEEDED if key not in row.absent]
  known = {**row.absent, **checks.fields_of(raw, schema, where, needed)}
  heads, width = known["num_attention_heads"], known["hidden_size"]
  try:
    usual = {
      "vocab_size": known["vocab_size"], "width": width, "layers": known["num_hidden_layers"],
      "heads": heads, "kv_heads": known.get("num_key_value_heads", heads),
      "head_dim": known.get("head_dim", width // heads), "mlp_width": known["intermediate_size"],
      "max_length": known.get("max_position_embeddings", 2048),
      "norm_epsilon": known.get("rms_norm_eps", 1e-6),
      "tied": known.get("tie_word_embeddings", False),
      "qkv_bias": known.get("attention_bias", False),
    }  # fmt: skip
    return Config(**usual | row.read(Found(raw, known, raw["model_type"], where)))
  except ValueError as error:
    said = str(error)
    raise ValueError(said if said.startswith(where) else f"{where}: {said}") from None


def check_keys(
  row: Row, raw: Mapping[str, Any], config: Config, where: str, used: Collection[str]
) -> None:
  """`Family.check_keys` of a row."""
  own = {*_SIZES, *_ROPE, *row.keys, *row.more, *used}
  harmless.known_keys(raw, where, own, {**harmless.CONFIG, **row.idle})


def spare(row: Row, c: Config) -> frozenset[str]:
  """`Family.spare` of a row."""
  return hf_layout.spare(c, row.names) | {name.format(c.layers) for name in row.spare}


def more_drafts(raw: Mapping[str, Any], spare: frozenset[str], c: Config) -> frozenset[str]:
  """The names of further draft layers, where `spare` has those of one behind the last layer."""
  count = raw.get("num_nextn_predict_layers")
  if not spare or not isinstance(count, int) or f"model.layers.{c.layers}.*" not in spare:
    return frozenset()
  return frozenset(f"model.layers.{c.layers + i}.*" for i in range(1, min(count, _DRAFTS)))


def layout(row: Row, c: Config) -> Layout:
  """`Family.layout` of a row."""
  table = hf_layout.layout(c, row.names)
  if not row.less_one:
    return table
  return {
    path: [part._replace(less=1.0) for part in parts] if path[-1] == "weight" else parts
    for path, parts in table.items()
  }


def to_json(rows: Mapping[str, Row], config: Config) -> dict[str, Any] | None:
  """The config.json of the first row that says this config; None where none does."""
  for name, row in rows.items():
    rope = first(config, FULL)
    raw: dict[str, Any] = {
      "model_type": name, "architectures": [row.architecture], "vocab_size": config.vocab_size,
      "hidden_size": config.width, "num_hidden_layers": config.layers,
      "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads,
      "head_dim": config.head_dim, "intermediate_size": config.mlp_width, "hidden_act": "silu",
      "max_position_embeddings": config.max_length, "rms_norm_eps": config.norm_epsilon,
      "tie_word_embeddings": config.tied, "rope_theta": rope.rope_theta,
      "rope_scaling": hf_rope.write(rope.rope_scaling), "pad_token_id": None,
    }  # fmt: skip
    raw |= row.write(config)
    if "rope_parameters" in raw:  # which transformers would empty for a `rope_scaling` of null
      del raw["rope_theta"], raw["rope_scaling"]
    try:
      if from_json(row, raw) == config:
        return raw
    except ValueError:
      continue
  return None


TYPES = {"layer_types": tuple[str, ...], "sliding_window": functools.partial(checks.whole, least=1)}
"""Keys of families whose layers are of two types."""
