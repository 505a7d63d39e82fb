"""The tensors on disk that make up our parameters, by the names that each family gives them."""

import dataclasses
from typing import NamedTuple

from specjax.models.config import Config


class Fusion(NamedTuple):
  """A tensor on disk: its name, and the shape that the config calls for."""

  name: str
  shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Names:
  """Tensor names of a family, without ".weight"; `layer` has a {} for its number."""

  embedding: str
  norm: str
  lm_head: str
  layer: str
  attention_norm: str
  q: str
  k: str
  v: str
  out: str
  mlp_norm: str
  gate: str
  up: str
  down: str


HF = Names(
  embedding="model.embed_tokens", norm="model.norm", lm_head="lm_head", layer="model.layers.{}",
  attention_norm="input_layernorm", q="self_attn.q_proj", k="self_attn.k_proj",
  v="self_attn.v_proj", out="self_attn.o_proj", mlp_norm="post_attention_layernorm",
  gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj",
)  # fmt: skip
# ff_out names two things: the second matrix of a layer's MLP and, outside the layers, the LM head.
LLADA = Names(
  embedding="model.transformer.wte", norm="model.transformer.ln_f",
  lm_head="model.transformer.ff_out", layer="model.transformer.blocks.{}",
  attention_norm="attn_norm", q="q_proj", k="k_proj", v="v_proj", out="attn_out",
  mlp_norm="ff_norm", gate="ff_proj", up="up_proj", down="ff_out",
)  # fmt: skip


Layout = dict[tuple[str, ...], list[Fusion]]
"""Our parameters by path, each the concatenation on axis 0 of tensors on disk."""


def spare(c: Config, names: Names) -> frozenset[str]:
  """The LM head, where it is the embedding once more."""
  return frozenset({f"{names.lm_head}.weight"} if c.tied else ())


def layout(c: Config, names: Names) -> Layout:
  """The parameters of a config, and their tensors by the names of a family."""
  E, F, C = c.width, c.mlp_width, c.head_dim
  table: Layout = {
    ("embedding",): [Fusion(f"{names.embedding}.weight", (c.vocab_size, E))],
    ("norm", "weight"): [Fusion(f"{names.norm}.weight", (E,))],
  }
  if not c.tied:
    table["lm_head",] = [Fusion(f"{names.lm_head}.weight", (c.vocab_size, E))]
  qkv = [(names.q, c.heads * C), (names.k, c.kv_heads * C), (names.v, c.kv_heads * C)]
  for i in range(c.layers):
    ours, theirs = f"layer_{i}", names.layer.format(i)
    table |= {
      (ours, "attention_norm", "weight"): [Fusion(f"{theirs}.{names.attention_norm}.weight", (E,))],
      (ours, "qkv"): [Fusion(f"{theirs}.{name}.weight", (rows, E)) for name, rows in qkv],
      (ours, "out"): [Fusion(f"{theirs}.{names.out}.weight", (E, c.heads * C))],
      (ours, "mlp_norm", "weight"): [Fusion(f"{theirs}.{names.mlp_norm}.weight", (E,))],
      (ours, "gate_up"): [Fusion(f"{theirs}.{n}.weight", (F, E)) for n in (names.gate, names.up)],
      (ours, "down"): [Fusion(f"{theirs}.{names.down}.weight", (E, F))],
    }
    if c.qkv_bias:
      table[ours, "qkv_bias"] = [Fusion(f"{theirs}.{name}.bias", (rows,)) for name, rows in qkv]
    if c.qk_norm:
      for name in ("q_norm", "k_norm"):
        table[ours, name, "weight"] = [Fusion(f"{theirs}.self_attn.{name}.weight", (C,))]
  return table
