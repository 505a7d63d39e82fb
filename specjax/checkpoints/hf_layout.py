"""The tensors on disk that make up our parameters, by the names that each family gives them."""

import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from specjax.base import Params
from specjax.checkpoints.files import Shapes, Tensors
from specjax.checkpoints.stored import room
from specjax.models import sharding
from specjax.models.config import Config, Experts, GatedDelta, GatedMemory, Mamba, Streams
from specjax.models.groups import Groups, concatenate
from specjax.models.weights import Matrix, parameter


class Fusion(NamedTuple):
  """A tensor on disk: its name, and the shape that the config calls for.

  `first` is the number of its first row, where it is a part of a larger tensor, of which the layout
  has the parts in order. Our values are those on disk and `less` more. Of experts [X, in, out] that
  are `turned` ours are [X, out, in]; outputs that are `woven` are gates and ups by turns, and ours
  the gates first (GPT-OSS). Rows that are `grouped` are groups of so many rows of each part, and
  ours one part after the other (Qwen3-Next).
  """

  name: str
  shape: tuple[int, ...]
  first: int = 0
  less: float = 0.0
  turned: bool = False
  woven: bool = False
  grouped: tuple[int, ...] = ()

  @property
  def own_shape(self) -> tuple[int, ...]:
    """That of our values."""
    return (self.shape[0], *self.shape[:0:-1]) if self.turned else self.shape

  def ours(self, stored: np.ndarray) -> np.ndarray:
    """Our values of those on disk."""
    x = stored.swapaxes(1, 2) if self.turned else stored
    x = np.concatenate([x[:, ::2], x[:, 1::2]], 1) if self.woven else x
    if self.grouped:
      groups = x.reshape(-1, sum(self.grouped), x.shape[1])
      parts = np.split(groups, np.cumsum(self.grouped)[:-1], 1)
      x = np.concatenate([part.reshape(-1, x.shape[1]) for part in parts])
    return x.astype(np.float32) + np.float32(self.less) if self.less else x

  def theirs(self, own: np.ndarray) -> np.ndarray:
    """The values on disk of ours."""
    x = own.astype(np.float32) - np.float32(self.less) if self.less else own
    x = np.stack(np.split(x, 2, 1), 2).reshape(x.shape) if self.woven else x
    if self.grouped:
      count = len(x) // sum(self.grouped)
      parts = np.split(x, count * np.cumsum(self.grouped)[:-1])
      groups = [part.reshape(count, -1, x.shape[1]) for part in parts]
      x = np.concatenate(groups, 1).reshape(x.shape)
    return x.swapaxes(1, 2) if self.turned else x


class Stack(list[Fusion]):
  """The tensors of `height` matrices, or biases, of one shape, of which each is the concatenation
  of some."""

  def __init__(self, matrices: Sequence[Sequence[Fusion]]):
    super().__init__(part for matrix in matrices for part in matrix)
    self.height = len(matrices)


# Tensor names of a family, without ".weight"; `layer` has a {} for its number.
HF = {
  "embedding": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head",
  "layer": "model.layers.{}", "attention_norm": "input_layernorm", "q": "self_attn.q_proj",
  "k": "self_attn.k_proj", "v": "self_attn.v_proj", "out": "self_attn.o_proj",
  "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
  "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
  "down": "mlp.down_proj", "router": "mlp.gate", "router_norm": "mlp.router_norm",
  "expert_gate": "mlp.experts.{}.gate_proj", "expert_up": "mlp.experts.{}.up_proj",
  "expert_down": "mlp.experts.{}.down_proj", "shared_gate": "mlp.shared_experts.gate_proj",
  "shared_up": "mlp.shared_experts.up_proj", "shared_down": "mlp.shared_experts.down_proj",
  "router_bias": "mlp.gate.expert_bias",
}  # fmt: skip
MIXTRAL = HF | {
  "router": "block_sparse_moe.gate", "expert_gate": "block_sparse_moe.experts.{}.w1",
  "expert_up": "block_sparse_moe.experts.{}.w3", "expert_down": "block_sparse_moe.experts.{}.w2",
}  # fmt: skip
MIMO = HF | {"mtp": "model.mtp_layers"}
# q, k and v are one tensor.
LLADA2 = HF | {
  "embedding": "model.word_embeddings", "out": "attention.dense",
  "q_norm": "attention.query_layernorm", "k_norm": "attention.key_layernorm",
} | dict.fromkeys("qkv", "attention.query_key_value")  # fmt: skip
# ff_out names two things: the second matrix of a layer's MLP and, outside the layers, the LM head.
LLADA = {
  "embedding": "model.transformer.wte", "norm": "model.transformer.ln_f",
  "lm_head": "model.transformer.ff_out", "layer": "model.transformer.blocks.{}",
  "attention_norm": "attn_norm", "q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "attn_out",
  "mlp_norm": "ff_norm", "gate": "ff_proj", "up": "up_proj", "down": "ff_out",
}  # fmt: skip

Read = Callable[[str, tuple[slice, ...]], np.ndarray]
"""Gives a part of the tensor of a name; () is the whole of it."""

OwnBits = Callable[[tuple[str, ...], Sequence[Fusion]], Mapping[tuple[str, ...], Matrix]]
"""Gives the parameter at a path, or its parts at paths of their own; {} leaves it to Read."""

Names = Mapping[str, str]
Layout = dict[tuple[str, ...], list[Fusion]]
"""Our parameters by path, each the concatenation on axis 0 of tensors on disk."""


def spare(c: Config, names: Names) -> frozenset[str]:
  """The LM head's tensor, which files may have although the embedding is the LM head, and those of
  MTP layers, which are a draft head."""
  lm_head = {f"{names['lm_head']}.weight"} if c.tied else set()
  return frozenset(lm_head | ({f"{names['mtp']}.*"} if "mtp" in names else set()))


def layout(c: Config, names: Names) -> Layout:
  """The parameters of a config, and their tensors by the names of a family."""
  E = c.width
  table: Layout = {
    ("embedding",): [Fusion(f"{names['embedding']}.weight", (c.vocab_size, E))],
    ("norm", "weight"): [Fusion(f"{names['norm']}.weight", (E,))],
  }
  if not c.tied:
    table["lm_head",] = [Fusion(f"{names['lm_head']}.weight", (c.vocab_size, E))]
  if P := c.layer_embedding:
    shapes = {
      "layer_embedding": (c.layer_vocab or c.vocab_size, c.layers * P),
      "layer_projection": (c.layers * P, E),
    }
    for name, shape in shapes.items():
      table[name,] = [Fusion(f"{names[name]}.weight", shape)]
    table["layer_norm", "weight"] = [Fusion(f"{names['layer_norm']}.weight", (P,))]
  if c.canvas is not None:
    table |= _self_conditioning(c, names)
  if c.streams is not None:
    of_streams = {
      name: [Fusion(f"{names[f'streams_{name}'].format(i)}.weight", (E, E))
             for i in range(c.streams.count - 1)]
      for name in ("apart", "together")
    }  # fmt: skip
    table["stream_ends", "apart"] = of_streams["apart"]
    for i, part in enumerate(of_streams["together"], 1):
      table["stream_ends", f"together_{i}"] = [part]
  for i in range(c.layers):
    table |= block(c.of_layer(i), (f"layer_{i}",), names["layer"].format(i), names)
  return table


def _self_conditioning(c: Config, names: Names) -> Layout:
  """What a decoder has beside the encoder of its weights, and the encoder's scalars."""
  E, F, ours = c.width, c.mlp_width, "self_conditioning"
  theirs = names["self_conditioning"]
  return {
    (ours, "soft_norm", "weight"): [Fusion(f"{theirs}.pre_norm.weight", (E,))],
    (ours, "gate_up"): [
      Fusion(f"{theirs}.{name}.weight", (F, E)) for name in ("gate_proj", "up_proj")
    ],
    (ours, "down"): [Fusion(f"{theirs}.down_proj.weight", (E, F))],
    ("encoder_scale",): [Fusion(names["encoder_scale"].format(i), (1,)) for i in range(c.layers)],
  }


def block(
  c: Config,
  ours: tuple[str, ...],
  theirs: str,
  names: Names = HF,
  *,
  inputs: int = 0,
  norm: bool = True,
) -> Layout:
  """The layer of a config that lies at `ours` in the parameters and at `theirs` on disk.

  `inputs` is the width of what attention reads, 0 for E; `norm` says whether a norm precedes
  attention.
  """
  E, F, C = c.width, c.mlp_width, c.head_dim
  qkv = [
    (names["q"], c.heads * C * (1 + c.attention_gate)),
    (names["k"], c.kv_heads * C),
    (names["v"], c.kv_heads * C),
  ]
  ends = [sum(rows for _, rows in qkv[:i]) for i in range(3)]
  starts = ends if names["q"] == names["k"] else [0, 0, 0]

  def of(name: str, *shape: int, kind: str = "weight") -> Fusion:
    return Fusion(f"{theirs}.{name}.{kind}", shape)

  table: Layout = {}
  attends = c.recurrence is None
  if isinstance(c.recurrence, GatedDelta):
    table |= delta_net(c.recurrence, E, (*ours, "recurrence"), of, names)
  elif isinstance(c.recurrence, Mamba):
    table |= mamba(c.recurrence, E, (*ours, "recurrence"), of, names)
  elif isinstance(c.recurrence, GatedMemory):
    M = c.recurrence.width
    table[*ours, "recurrence", "gate"] = [of(names["memory_gate"], M, E)]
    table[*ours, "recurrence", "norm"] = [of(names["memory_norm"], M)]
    table[*ours, "recurrence", "out"] = [of(names["memory_out"], E, M)]
  elif c.latent is not None:
    table |= _latent(c, (*ours, "latents"), of, names)
  elif c.source is not None or c.keys_as_values:
    own = qkv[: 1 if c.source is not None else 2]
    table[*ours, "qkv"[: len(own)]] = [of(name, rows, E) for name, rows in own]
  else:
    table[*ours, "gated_qkv" if c.attention_gate else "qkv"] = [
      of(name, rows, inputs or E)._replace(first=first)
      for (name, rows), first in zip(qkv, starts, strict=True)
    ]
  if attends:
    table[*ours, "out"] = [of(names["out"], E, c.heads * (c.latent.value if c.latent else C))]
  if c.experts is not None:
    table |= sparse(c.experts, E, (*ours, "experts"), of, names)
  if c.experts is None or c.experts.beside:
    gate_is_whole = names["gate"] != names["up"]
    up = of(names["up"], F, E)._replace(first=0 if gate_is_whole else F)
    table[*ours, "gate_up"] = [of(names["gate"], F, E), up]
    table[*ours, "down"] = [of(names["down"], E, F)]
  norms: tuple[str, ...] = ("attention_norm",) if norm and c.norms != "after" else ()
  norms += ("mlp_norm",) if c.norms in ("before", "both") else ()
  norms += ("attention_out_norm", "mlp_out_norm") if c.norms in ("after", "both") else ()
  if c.experts is not None and c.experts.beside:
    norms += ("dense_out_norm", "experts_norm", "experts_out_norm")
  if c.layer_embedding:
    norms += ("own_norm",)
    table[*ours, "own_gate"] = [of(names["own_gate"], c.layer_embedding, E)]
    table[*ours, "own_out"] = [of(names["own_out"], E, c.layer_embedding)]
  if c.streams is not None:
    table |= _altup(c.streams, E, ours, theirs, of, names)
  if c.layer_scale:
    table[*ours, "layer_scale"] = [Fusion(f"{theirs}.{names['layer_scale']}", (1,))]
  table |= {(*ours, x, "weight"): [of(names[x], E)] for x in norms}
  if c.sinks:
    table[*ours, "sinks"] = [_named(of, names["sinks"], c.heads)]
  if c.out_bias and attends:
    table[*ours, "out_bias"] = [of(names["out"], E, kind="bias")]
  if c.qkv_bias and attends:
    table[*ours, "qkv_bias"] = [of(name, rows, kind="bias") for name, rows in qkv]
  if c.qk_norm and attends:
    heads = {"q_norm": c.heads, "k_norm": c.kv_heads} if c.wide_qk_norm else {}
    for x in ("q_norm",) if c.source is not None else ("q_norm", "k_norm"):
      table[*ours, x, "weight"] = [of(names[x], C * heads.get(x, 1))]
  return table


def _altup(
  c: Streams, E: int, ours: tuple[str, ...], theirs: str, of: Callable[..., Fusion], names: Names
) -> Layout:
  """What a layer of several streams has beside others."""
  A, R = c.count, c.rank
  return {
    (*ours, "altup", "norm", "weight"): [of(names["altup_norm"], E)],
    (*ours, "altup", "router"): [of(names["altup_router"], A, E)],
    (*ours, "altup", "before"): [of(names["altup_before"], A * A, A)],
    (*ours, "altup", "behind"): [of(names["altup_behind"], A, A)],
    (*ours, "altup", "scale"): [Fusion(f"{theirs}.{names['altup_scale']}", (E,))],
    (*ours, "laurel", "down"): [of(names["laurel_down"], R, E)],
    (*ours, "laurel", "up"): [of(names["laurel_up"], E, R)],
    (*ours, "laurel", "norm", "weight"): [of(names["laurel_norm"], E)],
  }


def _latent(c: Config, ours: tuple[str, ...], of: Callable[..., Fusion], names: Names) -> Layout:
  """What latent attention has in the place of q, k and v."""
  own = c.latent
  assert own is not None
  up, plain = c.heads * (own.plain + own.value), "q" if not own.q_rank else "q_up"
  table: Layout = {
    (*ours, "kv_down"): [of(names["kv_down"], own.rank + own.rotary, c.width)],
    (*ours, "kv_norm", "weight"): [of(names["kv_norm"], own.rank)],
    (*ours, "kv_up"): [of(names["kv_up"], up, own.rank)],
    (*ours, "q_up"): [of(names[plain], c.heads * c.head_dim, own.q_rank or c.width)],
  }
  if own.q_rank:
    table[*ours, "q_down"] = [of(names["q_down"], own.q_rank, c.width)]
    table[*ours, "q_norm", "weight"] = [of(names["q_down_norm"], own.q_rank)]
  return table


def delta_net(
  c: GatedDelta, E: int, ours: tuple[str, ...], of: Callable[..., Fusion], names: Names
) -> Layout:
  """A recurrent layer, whose projections are two tensors by key heads (Qwen3-Next), or four."""
  K, H, C, F = c.key_heads, c.value_heads, c.key_dim, c.value_dim
  X, each = 2 * K * C + H * F, H // K
  if "delta_qkvz" in names:
    qkvz = [of(names["delta_qkvz"], X + H * F, E)._replace(grouped=(C, C, each * F, each * F))]
    rate_time = [of(names["delta_rate_time"], 2 * H, E)._replace(grouped=(each, each))]
  else:
    qkvz = [of(names["delta_qkv"], X, E), of(names["delta_z"], H * F, E)]
    rate_time = [of(names["delta_rate"], H, E), of(names["delta_time"], H, E)]
  return {
    (*ours, "qkvz"): qkvz,
    (*ours, "rate_time"): rate_time,
    (*ours, "kernel"): [of(names["delta_kernel"], X, 1, c.kernel)],
    (*ours, "log_slope"): [_named(of, names["delta_log_slope"], H)],
    (*ours, "time_bias"): [_named(of, names["delta_time_bias"], H)],
    (*ours, "norm"): [of(names["delta_norm"], F)],
    (*ours, "out"): [of(names["delta_out"], E, H * F)],
  }


def mamba(
  c: Mamba, E: int, ours: tuple[str, ...], of: Callable[..., Fusion], names: Names
) -> Layout:
  """A recurrent layer of Mamba-2, whose projections in are one tensor."""
  H, inner = c.heads, c.heads * c.head_dim
  X = inner + 2 * c.groups * c.state
  return {
    (*ours, "zxbct"): [of(names["mamba_in"], inner + X + H, E)],
    (*ours, "kernel"): [of(names["mamba_kernel"], X, 1, c.kernel)],
    (*ours, "kernel_bias"): [of(names["mamba_kernel"], X, kind="bias")],
    (*ours, "log_slope"): [_named(of, names["mamba_log_slope"], H)],
    (*ours, "time_bias"): [_named(of, names["mamba_time_bias"], H)],
    (*ours, "skip"): [_named(of, names["mamba_skip"], H)],
    (*ours, "norm"): [of(names["mamba_norm"], inner)],
    (*ours, "out"): [of(names["mamba_out"], E, inner)],
  }


def _named(of: Callable[..., Fusion], name: str, *shape: int) -> Fusion:
  """A tensor whose whole name is given, which may end otherwise than ".weight"."""
  name, _, kind = name.rpartition(".")
  return of(name, *shape, kind=kind)


def sparse(
  c: Experts, E: int, ours: tuple[str, ...], of: Callable[..., Fusion], names: Names
) -> Layout:
  """The router and the experts of a layer; `of` gives one of its tensors."""
  F, S = c.width, c.shared_width
  inner = ("expert_gate", "expert_up") if c.gated else ("expert_up",)
  table: Layout = {(*ours, "router"): [of(names["router"], c.count, E)]}
  if "experts_in" in names:
    table |= _whole(c, E, ours, of, names)
  elif "experts_gate_up" in names:
    table[*ours, "expert_gate_up"] = [of(names["experts_gate_up"], c.count, 2 * F, E)]
    table[*ours, "expert_down"] = [of(names["experts_down"], c.count, E, F)]
  else:
    table[*ours, "expert_gate_up"] = Stack(
      [[of(names[x].format(e), F, E) for x in inner] for e in range(c.count)]
    )
    table[*ours, "expert_down"] = Stack(
      [[of(names["expert_down"].format(e), E, F)] for e in range(c.count)]
    )
  if c.router == "sigmoid":
    table[*ours, "router_bias"] = [_named(of, names["router_bias"], c.count)]
  if c.router == "relu":
    table[*ours, "router_norm", "weight"] = [of(names["router_norm"], c.count)]
  if S:
    up = of(names["shared_up"], S, E)
    up = up._replace(first=S if names["shared_gate"] == names["shared_up"] else 0)
    shared = [of(names["shared_gate"], S, E), up]
    table[*ours, "shared", "gate_up"] = shared
    table[*ours, "shared", "down"] = [of(names["shared_down"], E, S)]
  if c.shared_gate:
    table[*ours, "shared_share"] = [of(names["shared_share"], 1, E)]
  return table


def _whole(
  c: Experts, E: int, ours: tuple[str, ...], of: Callable[..., Fusion], names: Names
) -> Layout:
  """The experts of a layer that are whole tensors: those of GPT-OSS, with biases, and Llama 4, and
  those of Gemma 4, which lie as ours do."""
  X, F, whole = c.count, c.width, functools.partial(_named, of)
  if c.beside:
    return {
      (*ours, "expert_gate_up"): [whole(names["experts_in"], X, 2 * F, E)],
      (*ours, "expert_down"): [whole(names["experts_out"], X, E, F)],
      (*ours, "router_scale"): [whole(names["router_scale"], E)],
      (*ours, "expert_scale"): [whole(names["expert_scale"], X)],
    }
  inner, outer = whole(names["experts_in"], X, E, 2 * F), whole(names["experts_out"], X, F, E)
  table: Layout = {
    (*ours, "expert_gate_up"): [inner._replace(turned=True, woven=c.biases)],
    (*ours, "expert_down"): [outer._replace(turned=True)],
  }
  if c.biases:
    bias = whole(f"{names['experts_in']}_bias", X, 2 * F)
    table[*ours, "router_bias"] = [whole(names["router_bias"], X)]
    table[*ours, "expert_gate_up_bias"] = [bias._replace(woven=True)]
    table[*ours, "expert_down_bias"] = [whole(f"{names['experts_out']}_bias", X, E)]
  return table


def whole_stacks(layout: Layout, shapes: Shapes) -> Layout:
  """The layout for files whose experts are whole tensors, as Qwen3.5 is published."""

  def found(parts: list[Fusion]) -> list[Fusion]:
    if not isinstance(parts, Stack):
      return parts
    each, (rows, *width) = len(parts) // parts.height, parts[0].shape
    base = parts[0].name.rsplit(".", 3)[0]  # of BASE.0.gate_proj.weight
    name = f"{base}.{'gate_up_proj' if each == 2 else 'down_proj'}"
    whole = Fusion(name, (parts.height, each * rows, *width))
    return parts if parts[0].name in shapes or name not in shapes else [whole]

  return {path: found(parts) for path, parts in layout.items()}


def assemble(
  layout: Layout,
  spare: frozenset[str],
  shapes: Shapes,
  read: Read,
  dtype: DTypeLike,
  config: str = "config.json",
  weights: str = "float",
  mesh: Mesh | None = None,
  own_bits: OwnBits | None = None,
) -> Params:
  """Parameters of tensors that are read one at a time; the host never holds the model twice.

  On a mesh the parameters are those of `sharding.split`, spread over it, and each process reads its
  own parts of the tensors; matrices in bfloat16 or 8 bits are read whole.

  Args:
    spare: names of tensors that may be there and are not read, with * for any letters.
    shapes: of all tensors that are there, by name.
    config: what the errors name as the source of the layout.
    weights: how matrices lie in memory, see `weights.parameter`.
    own_bits: reads parameters that lie in memory as they do on disk.

  Raises:
    ValueError: a tensor is missing, extra or misshapen; the first is named.
  """
  layout = whole_stacks(layout, shapes)
  # Of a tensor in several parts, the last one says how many rows it has.
  wanted = {
    part.name: (part.first + part.shape[0], *part.shape[1:])
    for parts in layout.values()
    for part in parts
  }
  for name, shape in wanted.items():
    if name not in shapes:
      raise ValueError(f"the checkpoint lacks tensor {name} of shape {shape}.")
    if shapes[name] != shape:
      raise ValueError(f"tensor {name} has shape {shapes[name]}, {config} calls for {shape}.")
  unread = ("*rotary_emb.inv_freq", *spare)
  for name in sorted(shapes.keys() - wanted.keys()):
    if not any(fnmatch.fnmatchcase(name, each) for each in unread):
      raise ValueError(f"the checkpoint has tensor {name}, for which {config} has no place.")
  if mesh is not None and weights == "float":
    return {"params": unflatten_dict(_spread(layout, read, dtype, mesh))}

  def made(path: tuple[str, ...], parts: list[Fusion]) -> Matrix:
    """The parameter at a path; what it is made of is gone before the next is read."""
    pieces = (
      p.ours(
        read(p.name, () if p.shape == wanted[p.name] else (slice(p.first, p.first + p.shape[0]),))
      )
      for p in parts
    )
    # A router's choice jumps where its logits change a little; the others have few numbers.
    few = ("router", "kernel", "before", "behind", "prefix_k", "prefix_v")
    own = "float" if path[-1] in few or path[-1].endswith("_bias") else weights
    if own in ("float", "native"):
      shape = sum(p.own_shape[0] for p in parts), *parts[0].own_shape[1:]
      whole = gathered(pieces, shape, dtype)
    else:
      whole = np.concatenate([*pieces])
    if isinstance(parts, Stack):
      whole = whole.reshape(parts.height, -1, *whole.shape[1:])
    return parameter(whole, dtype, own, looked_up=path[-1].endswith("embedding"))

  params: dict[tuple[str, ...], Any] = {}
  for path, parts in layout.items():
    if own_bits is not None and (held := own_bits(path, parts)):
      params |= held
      continue
    params[path] = made(path, parts)
  found = {"params": unflatten_dict(params)}
  return found if mesh is None else sharding.place(found, mesh)


def gathered(pieces: Iterable[np.ndarray], shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
  """The concatenation of pieces in a dtype, of which only one is in memory at a time."""
  found, row = None, 0
  for piece in pieces:
    if piece.shape == shape and piece.dtype == jnp.dtype(dtype):
      return piece
    found = room(shape, dtype) if found is None else found
    found[row : row + len(piece)] = piece
    row += len(piece)
    del piece
  assert found is not None
  return found


def joined(path: tuple[str, ...], made: Sequence[Matrix]) -> dict[tuple[str, ...], Matrix]:
  """A parameter of its parts; those that lie in different ways are apart, as on a mesh."""
  held = [w for w in made if isinstance(w, Groups)]
  if len(held) == len(made) and (whole := concatenate(held)) is not None:
    return {path: whole}
  names = sharding.apart(path[-1])
  return {(*path[:-1], name): w for name, w in zip(names, made, strict=True)}


def _spread(layout: Layout, read: Read, dtype: DTypeLike, mesh: Mesh) -> dict[Any, Array]:
  """The parameters by path on a mesh, each read in the parts that the process's devices hold."""
  sharding.check_mesh(mesh)
  params: dict[Any, Array] = {}

  def part(own: Fusion, index: Any) -> np.ndarray:
    start, stop, _ = index[0].indices(own.shape[0])
    rows = slice(own.first + start, own.first + stop)
    return own.ours(read(own.name, (rows, *index[1:]))).astype(jnp.dtype(dtype))

  def stacked(parts: Stack, index: Any) -> np.ndarray:
    each = len(parts) // parts.height
    wanted = range(*index[0].indices(parts.height))
    matrices = [
      np.concatenate([read(p.name, ()) for p in parts[e * each : (e + 1) * each]]) for e in wanted
    ]
    return np.stack(matrices)[:, *index[1:]].astype(jnp.dtype(dtype))

  for (*above, last), parts in layout.items():
    if isinstance(parts, Stack):
      rows = sum(p.shape[0] for p in parts) // parts.height
      shape: tuple[int, ...] = (parts.height, rows, *parts[0].shape[1:])
      spread, ours = sharding.of_weight(last, shape, mesh), functools.partial(stacked, parts)
      params[*above, last] = jax.make_array_from_callback(shape, spread, ours)
      continue
    if len(names := sharding.apart(last)) < len(parts):
      joined = np.concatenate([p.ours(read(p.name, ())) for p in parts]).astype(jnp.dtype(dtype))
      spread = sharding.of_weight(last, joined.shape, mesh)
      params[*above, last] = jax.device_put(joined, spread)
      continue
    for name, own in zip(names, parts, strict=True):
      spread = sharding.of_weight(name, own.own_shape, mesh)
      read_part = functools.partial(part, own)
      params[*above, name] = jax.make_array_from_callback(own.own_shape, spread, read_part)
  return params


def scatter(params: Params, layout: Layout, dtype: DTypeLike) -> Tensors:
  """The tensors on disk of parameters; ValueError where these are not the layout's."""
  leaves = flatten_dict(params["params"])
  tensors: dict[str, np.ndarray] = {}
  for key in sorted(layout.keys() ^ leaves.keys()):
    state = "lacks" if key in layout else "has no place for"
    raise ValueError(f"the config and params disagree: params {state} {'/'.join(key)}.")
  for key, parts in layout.items():
    whole, row = np.asarray(leaves[key]), 0
    shape = (sum(part.shape[0] for part in parts), *parts[0].own_shape[1:])
    if isinstance(parts, Stack):
      shape = (parts.height, shape[0] // parts.height, *shape[1:])
    if whole.shape != shape:
      raise ValueError(f"{'/'.join(key)} has shape {whole.shape}, the config calls for {shape}.")
    whole = whole.reshape(-1, shape[-1]) if isinstance(parts, Stack) else whole
    for each in parts:
      rows = each.shape[0]
      with np.errstate(over="ignore"):  # `files.write` refuses what is not finite
        part = each.theirs(whole[row : row + rows]).astype(jnp.dtype(dtype), order="C")
      tensors[each.name] = np.concatenate([tensors[each.name], part]) if each.first else part
      row += rows
  return tensors
