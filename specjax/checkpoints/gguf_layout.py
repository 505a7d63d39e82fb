"""Where our parameters lie in a GGUF file, by the names of its tensors.

A file holds the experts of a layer, and the heads of a latent, in stacks. One matrix of a stack is
called by the stack's name and #NUMBER.
"""

import re
from collections.abc import Callable, Mapping

from gguf import get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

from specjax.checkpoints import gguf_delta
from specjax.checkpoints.files import Shapes
from specjax.checkpoints.hf_layout import Fusion, Layout, Stack
from specjax.models.config import Config, GatedDelta, Mamba

_KINDS = (".weight", ".bias")
_NUMBER = re.compile(r"\.experts\.(\d+)\.")
_STACKED = {"input_linear.weight": "gate_up", "output_linear.weight": "down"}
_WHOLE = re.compile(r"(.*\.experts\.)(gate_up|down)_proj(_bias)?")
# Stacks of matrices, beside those of experts: of latents' heads, and of streams.
_STACKS = ("attn_k_b", "attn_v_b", "altup_proj", "altup_unembd_proj")
_STREAMS = re.compile(r"(model\.altup_(?:unembed_)?projections)\.(\d+)\.weight")
# Of Gemma 4's router, and of the experts that it chooses.
_STEP = re.compile(r"(linear_attn|mamba)\.dt_bias")
_SCALE = re.compile(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)")
_OF_ROUTER = {"scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}
TURNED = "attn_k_b"
"""The stack whose matrices are the transposes of ours."""


def names(architecture: str, layers: int) -> Callable[[str], str]:
  """From Hugging Face's names of tensors to those of an architecture; others are left as they
  are."""
  known = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
  table = get_tensor_name_map(MODEL_ARCH(known[architecture]), layers)

  def theirs(name: str) -> str:
    if found := _SCALE.fullmatch(name):
      return f"blk.{found[1]}.{_OF_ROUTER[found[2]]}"
    name = _STEP.sub(r"\1.dt_proj.bias", name)
    if found := _STREAMS.fullmatch(name):
      return f"{table.get_name(found[1])}.weight#{found[2]}"
    plain, _, number = name.partition("#")
    if found := _NUMBER.search(plain):
      plain, number = _NUMBER.sub(".experts.", plain), found[1]
    own = table.get_name(re.sub("_bias$", ".bias", plain), _KINDS)
    if own is None:
      return name
    own = own if own.endswith((*_KINDS, gguf_delta.SLOPE, gguf_delta.SKIP)) else f"{own}.weight"
    return f"{own}#{number}" if number else own

  return theirs


def _experts(c: Config, parts: list[Fusion]) -> list[Fusion]:
  """The gates, ups and downs of each expert, where a family has those of all in one tensor; gates
  and ups are one in files of Gemma 4, too."""
  if (found := _WHOLE.fullmatch(parts[0].name)) is None:
    return parts
  base, which, bias = found.groups()
  together = c.experts is not None and c.experts.beside
  own = ("gate", "up") if which == "gate_up" and not together else (which,)
  count, rows, *width = parts[0].own_shape
  shape, kind = (rows // len(own), *width), "bias" if bias else "weight"
  return Stack(
    [[Fusion(f"{base}{e}.{name}_proj.{kind}", shape) for name in own] for e in range(count)]
  )


def _heads(c: Config, parts: list[Fusion]) -> list[Fusion]:
  """Of each head what makes keys of latents, and what makes values, which one tensor has else."""
  stem, found, kind = parts[0].name.partition("kv_b_proj")
  if c.latent is None or not found:
    return parts
  sizes = {"k": c.latent.plain, "v": c.latent.value}
  return [
    Fusion(f"{stem}{x}_b_proj{kind}#{head}", (rows, c.latent.rank))
    for head in range(c.heads)
    for x, rows in sizes.items()
  ]


def _granite(c: Config, parts: list[Fusion]) -> list[Fusion]:
  """The MLPs of Granite 4 by the names of others, gates and ups apart."""
  stem, _, last = parts[0].name.partition("block_sparse_moe.")
  if last in _STACKED:
    return [parts[0]._replace(name=f"{stem}mlp.experts.{_STACKED[last]}_proj")]
  stem, found, last = parts[0].name.partition("shared_mlp.")
  if not found:
    return parts
  own = f"{stem}mlp." if c.experts is None else f"{stem}mlp.shared_expert."
  names = ("gate", "up") if last == "input_linear.weight" else ("down",)
  return [
    part._replace(name=f"{own}{name}_proj.weight", first=0)
    for part, name in zip(parts, names, strict=True)
  ]


def recurrent(c: Config) -> GatedDelta | Mamba | None:
  """The sizes of its recurrent layers, or None where there is none."""
  found = (kind.recurrence for kind in c.kinds)
  return next((x for x in found if isinstance(x, GatedDelta | Mamba)), None)


def layout(table: Layout, c: Config, theirs: Callable[[str], str]) -> Layout:
  """A family's layout of a config, by the names that `names` gives; norms of Gemma hold 1 + w."""
  made: Layout = {}
  for path, parts in table.items():
    own = gguf_delta.apart(_heads(c, _experts(c, _granite(c, parts))), recurrent(c))
    own[:] = [part._replace(name=theirs(part.name), less=0.0) for part in own]
    made[path] = own
  return made


def shapes(found: Mapping[str, tuple[int, ...]]) -> Shapes:
  """The shapes of all matrices, those of stacks one by one, of the shapes of all tensors."""
  own: dict[str, tuple[int, ...]] = {}
  for name, shape in found.items():
    part = gguf_delta.part_of(name)
    if part in _STACKS or (part.endswith("_exps") and not name.endswith(".scale")):
      each = shape[:0:-1] if part == TURNED else shape[1:]
      own |= {f"{name}#{number}": each for number in range(shape[0])}
    else:
      own[name] = gguf_delta.shape(part, shape)
  return own
