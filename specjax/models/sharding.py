"""How weights and caches are spread over a mesh with axes "data" and "model".

Heads, columns of the MLP, experts and the vocabulary are spread over "model", rows of a batch over
"data"; every product with spread columns is followed by one with spread rows. After the last
product, a device holds some of the nodes, each with its whole vocabulary. A mesh for training may
have a third axis "sequence", which spreads the tokens of rows; weights lie whole along it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey

from specjax.base import Params
from specjax.kernels.platform import mesh_axis
from specjax.models import ring

AXES = {"data": "ROWS", "model": "COLUMNS"}  # and what they spread
COLUMNS, ROWS = PartitionSpec("model"), PartitionSpec(None, "model")  # of weights [out, in]
KV_CACHE = PartitionSpec("data", "model")  # [B, K, S, C]
_FUSED = {
  "qkv": ("q", "k", "v"),
  "gated_qkv": ("q", "k", "v"),
  "qk": ("q", "k"),
  "gate_up": ("gate", "up"),
}
_OF_EXPERTS = "expert_gate_up", "expert_down"
_OF_WEIGHT = (
  {"embedding": COLUMNS, "lm_head": COLUMNS, "out": ROWS, "down": ROWS}
  | dict.fromkeys(("q", "k", "v", "q_bias", "k_bias", "v_bias", "gate", "up"), COLUMNS)
  | dict.fromkeys(("q_up", "kv_up"), COLUMNS)  # of latents
  | dict.fromkeys(_OF_EXPERTS, PartitionSpec("model"))  # [X, out, in]
  | dict.fromkeys(("expert_gate_up_bias", "expert_down_bias"), PartitionSpec("model"))  # [X, out]
  | dict.fromkeys(("fc", "projection"), ROWS)  # of heads, from the target's states
)
_IN_STEPS = (
  "xla_enable_async_all_gather", "xla_tpu_enable_async_collective_fusion",
  "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
  "xla_tpu_enable_async_collective_fusion_multiple_steps",
  "xla_tpu_overlap_compute_collective_tc",
)  # fmt: skip
_OF_HEAD = "embedding", "lm_head", "fc", "projection"


def mesh(data: int = 1, model: int = 1, sequence: int = 1) -> Mesh:
  """A mesh of the first data * model * sequence devices, for `Model.on` and `jax.set_mesh`.

  `data` divides a batch's rows, `model` heads and columns, `sequence` the tokens of rows in the
  training of heads, see `models.ring`. ValueError: there are fewer devices.
  """
  sizes = {"data": data, "model": model} | ({ring.AXIS: sequence} if sequence != 1 else {})
  count, devices = math.prod(sizes.values()), jax.devices()
  if min(sizes.values()) < 1 or count > len(devices):
    *few, last = (f"`{axis}`" for axis in sizes)
    *numbers, end = map(str, sizes.values())
    raise ValueError(
      f"{', '.join(few)} and {last} must be at least 1, and together at most the {len(devices)} "
      f"devices there are, got {', '.join(numbers)} and {end}."
    )
  axes = (AxisType.Auto,) * len(sizes)
  return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axes, devices=devices[:count])


def named_mesh(text: str, axes: Mapping[str, str] = AXES) -> Mesh:
  """The mesh of a text such as data=2,model=4; an axis that is left out has one device.

  `axes` are those that there may be, and what they spread. ValueError: the text says something
  else, or there are fewer devices.
  """
  sizes = dict(part.partition("=")[::2] for part in text.split(","))
  sound = all(size.isdecimal() for size in sizes.values()) and sizes.keys() <= axes.keys()
  if not sound or len(sizes) != text.count(",") + 1:
    form = ",".join(map("=".join, axes.items()))
    raise ValueError(f"`mesh` must be {form}, such as data=2,model=4, got {text!r}.")
  return mesh(**{axis: int(size) for axis, size in sizes.items()})


def split(params: Params) -> Params:
  """The weights with q, k, v, gate and up as matrices of their own; `Transformer` takes either.

  If qkv were spread as one matrix, queries and their keys would lie on different devices, and every
  layer would have to send them.
  """
  rest = {k: split(x) if isinstance(x, Mapping) else x for k, x in params.items()}
  if "gate_up" in rest:
    gate_up = rest.pop("gate_up")
    half = gate_up.shape[0] // 2
    rest["gate"], rest["up"] = gate_up[:half], gate_up[half:]
  if "qk" in rest:
    qk, queries = rest.pop("qk"), params["out"].shape[1]
    rest["q"], rest["k"] = qk[:queries], qk[queries:]
  for name, whole in (("", "qkv"), ("_bias", "qkv_bias"), ("", "gated_qkv")):
    if whole in rest:
      qkv, queries = rest.pop(whole), params["out"].shape[1]
      queries *= 1 + (whole == "gated_qkv")
      ends = (0, queries, (queries + qkv.shape[0]) // 2, qkv.shape[0])
      parts = [qkv[a:b] for a, b in itertools.pairwise(ends)]
      rest |= {f"{each}{name}": part for each, part in zip("qkv", parts, strict=True)}
  return rest


def apart(name: str) -> tuple[str, ...]:
  """The matrices of their own that `split` makes of a weight: q, k and v of qkv."""
  kind, bias, _ = name.partition("_bias")
  return tuple(part + bias for part in _FUSED.get(kind, (kind,)))


def _spread(name: str, shape: Sequence[int], mesh: Mesh) -> NamedSharding:
  """How a weight of `split` is spread; norms and odd sizes lie whole on every device."""
  spec = PartitionSpec(*_OF_WEIGHT.get(name, ())[: len(shape)])  # a scale has the outputs alone
  sizes = zip(spec, shape, strict=False)  # a spec may be short
  divides = all(axis is None or n % mesh.shape[axis] == 0 for axis, n in sizes)
  return NamedSharding(mesh, spec if divides else PartitionSpec())


def of_weight(name: str, shape: Sequence[int], mesh: Mesh) -> NamedSharding | Format:
  """How a weight of `split` is spread, an array by itself.

  On TPUs the outputs of experts are their last axis in memory, as `lax.ragged_dot` reads them:
  the compiler would store them a second time.
  """
  place = _spread(name, shape, mesh)
  if name in _OF_EXPERTS and len(shape) == 3 and _on_tpus(mesh):
    return Format(Layout((0, 2, 1)), place)
  return place


def _on_tpus(mesh: Mesh) -> bool:
  return mesh.devices.flat[0].platform == "tpu"


def of_params(params: Params, mesh: Mesh) -> Any:
  """A NamedSharding for each weight of `split`, or a Format, see `of_weight`."""

  def of(path, x) -> NamedSharding | Format:
    names = [step.key for step in path if isinstance(step, DictKey)]
    alone = isinstance(path[-1], DictKey)  # else a part of a matrix in few bits
    return (of_weight if alone else _spread)(names[-1], x.shape, mesh)

  return jax.tree_util.tree_map_with_path(of, params)


def place(params: Params, mesh: Mesh) -> Params:
  """The network's weights spread over the mesh, for use under `jax.set_mesh(mesh)`.

  It raises ValueError for a mesh whose axes are not "data" and "model", both Auto.
  """
  check_mesh(mesh)
  parts = split(params)
  return jax.device_put(parts, of_params(parts, mesh))


def split_head(params: Params) -> Params:
  """A head's weights with each layer like the target's as `split` has it."""
  parts = {}
  for name, x in params.items():
    if isinstance(x, Mapping) and name != "lora":  # an update of the target's layers stays whole
      x = split(x) if name.startswith("layer_") else split_head(x)
    parts[name] = x
  return parts


def of_head(params: Params, mesh: Mesh) -> Any:
  """A NamedSharding for each weight of `split_head`.

  Layers like the target's, embeddings, LM heads and projections of the target's states are spread
  as the target's are. All else is small and lies whole on every device.
  """

  def of(path, x) -> NamedSharding | Format:
    names = [step.key for step in path if isinstance(step, DictKey)]
    layer = "lora" not in names and any(name.startswith("layer_") for name in names)
    shape = x.shape if layer or names[-1] in _OF_HEAD else ()
    return of_weight(names[-1], shape, mesh)

  return jax.tree_util.tree_map_with_path(of, params)


def place_head(params: Params) -> Params:
  """A head's weights on the mesh that is set; as they are where none is."""
  mesh = jax.sharding.get_mesh()
  if mesh.empty:
    return params
  parts = split_head(params)
  return jax.device_put(parts, of_head(parts, mesh))


def compiler_options(mesh: Mesh) -> dict[str, str]:
  """What XLA's compiler is asked for a training step over a mesh, for `jax.jit`.

  A TPU then gathers weights in steps, which are fused with products; without, it waits for them.
  GPUs do so by themselves.
  """
  return dict.fromkeys(_IN_STEPS, "true") if mesh.size > 1 and _on_tpus(mesh) else {}


def check_mesh(mesh: Mesh) -> None:
  """Raises ValueError for a mesh whose axes are not "data" and "model", both Auto."""
  names = set(mesh.axis_names) - {ring.AXIS}
  if names != {"data", "model"} or set(mesh.axis_types) != {AxisType.Auto}:
    raise ValueError(
      '`mesh` must have the axes "data" and "model", both AxisType.Auto, got '
      f"{dict(zip(mesh.axis_names, mesh.axis_types, strict=True))}."
    )


def dealt(tree: Any) -> Any:
  """Arrays [B, T, ..] with their rows over "data", and tokens over "sequence", where a mesh is set
  whose axes divide them."""
  mesh = jax.sharding.get_mesh()
  if mesh.empty:
    return tree

  def deal(x: Any) -> Array:
    axes = mesh_axis("data", len(x)), mesh_axis(ring.AXIS, x.shape[1])
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

  return jax.tree.map(deal, tree)


def on_all(tree: Any, copied: NamedSharding) -> Any:
  """Arrays on the devices of a sharding: those that are there stay as they are spread."""

  def put(x: Any) -> Array:
    there = isinstance(x, Array) and x.sharding.device_set == copied.device_set
    return x if there else jax.device_put(x, copied)

  return jax.tree.map(put, tree)


def spread_nodes(logits: Array) -> Array:
  """Logits [B, N, V] with the nodes spread over "model" where a mesh is set.

  Distributions are sorted, summed and drawn from. If the vocabulary stayed spread, XLA would gather
  all of it, for every node, on every device.
  """
  B, N, V = logits.shape
  rows, nodes, words = mesh_axis("data", B), mesh_axis("model", N), mesh_axis("model", V)
  if nodes is None:
    return logits
  # First they stay as the product leaves them; otherwise XLA gathers the weights to spread nodes.
  logits = jax.lax.with_sharding_constraint(logits, PartitionSpec(rows, None, words))
  return jax.lax.with_sharding_constraint(logits, PartitionSpec(rows, nodes))
