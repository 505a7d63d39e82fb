"""Model families: how a config.json becomes a network, by its `model_type`.

A new family is a file that defines the functions of a `Family`, and a row of FAMILIES; one whose
layers `Config` can describe is a `Row` alone.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import Array

from specjax import checks
from specjax.base import Params, Target
from specjax.checkpoints import hf_config, hf_diffusion_gemma, hf_parscale, hf_pictures, hf_rows
from specjax.checkpoints.hf_cohere import COHERE
from specjax.checkpoints.hf_deepseek import DEEPSEEK
from specjax.checkpoints.hf_diffusion_gemma import DIFFUSION_GEMMA
from specjax.checkpoints.hf_gemma import GEMMA
from specjax.checkpoints.hf_gemma3n import GEMMA3N
from specjax.checkpoints.hf_gemma4 import GEMMA4
from specjax.checkpoints.hf_glm import GLM
from specjax.checkpoints.hf_gpt_oss import GPT_OSS
from specjax.checkpoints.hf_granite import GRANITE
from specjax.checkpoints.hf_layout import (
  HF,
  LLADA,
  LLADA2,
  MIMO,
  MIXTRAL,
  Layout,
  Names,
  layout,
  spare,
)
from specjax.checkpoints.hf_ling import LING
from specjax.checkpoints.hf_llama4 import LLAMA4
from specjax.checkpoints.hf_minimax import MINIMAX
from specjax.checkpoints.hf_ministral import MINISTRAL
from specjax.checkpoints.hf_mixtures import MIXTURES
from specjax.checkpoints.hf_near_llama import NEAR_LLAMA
from specjax.checkpoints.hf_norms_after import NORMS_AFTER
from specjax.checkpoints.hf_qwen_next import QWEN_NEXT
from specjax.checkpoints.hf_rows import Row
from specjax.checkpoints.hf_sambay import SAMBAY
from specjax.models import parscale, transformer
from specjax.models.config import Config


class Family(NamedTuple):
  """One kind of network.

  Attributes:
    config: class of its configs, hashable, with vocab_size, width, max_length and causal.
    from_json: config.json -> config; ValueError where it describes no such network.
    layout: config -> its parameters by path, and the tensors on disk that make each of them.
    target: config -> Target.
    init: (config, key) -> random parameters.
    spare: config -> names of tensors that may be on disk and are not read, with * for any letters.
    check_keys: (config.json, config, name of the file, keys that `hf.load` reads) -> None;
      ValueError for a key that could change the output and that nothing reads.
  """

  config: type
  from_json: Callable[..., Any]
  layout: Callable[[Any], Layout]
  target: Callable[[Any], Target]
  init: Callable[[Any, Array], Params]
  spare: Callable[[Any], frozenset[str]] = lambda config: frozenset()
  check_keys: Callable[..., None] = lambda *given: None


def _llama(names: Names) -> Family:
  return Family(
    Config,
    hf_config.from_json,
    functools.partial(layout, names=names),
    transformer.target,
    transformer.init,
    functools.partial(spare, names=names),
    hf_config.check_keys,
  )


_OTHERS = {"llada": LLADA, "mixtral": MIXTRAL, "llada2_moe": LLADA2, "mimo": MIMO}
FAMILIES: dict[str, Family] = {name: _llama(_OTHERS.get(name, HF)) for name in hf_config.FAMILIES}


def _of_row(row: Row) -> Family:
  return Family(
    Config,
    functools.partial(hf_rows.from_json, row),
    functools.partial(hf_rows.layout, row),
    transformer.target,
    transformer.init,
    functools.partial(hf_rows.spare, row),
    functools.partial(hf_rows.check_keys, row),
  )


ROWS: dict[str, Row] = (
  GEMMA
  | NORMS_AFTER
  | GRANITE
  | NEAR_LLAMA
  | GLM
  | COHERE
  | MINISTRAL
  | MIXTURES
  | MINIMAX
  | GPT_OSS
  | DEEPSEEK
  | LLAMA4
  | GEMMA4
  | GEMMA3N
  | DIFFUSION_GEMMA
  | QWEN_NEXT
  | SAMBAY
)
FAMILIES |= {name: _of_row(row) for name, row in (ROWS | LING).items()}
FAMILIES["kimi_k2"] = FAMILIES["deepseek_v3"]  # the same network, which is saved as that
_CANVAS = FAMILIES["diffusion_gemma_text"]
FAMILIES["diffusion_gemma"] = _CANVAS._replace(  # both halves, as it is published
  from_json=lambda raw, where="config.json": _CANVAS.from_json(
    hf_diffusion_gemma.text(raw, where), where
  ),
  check_keys=lambda raw, config, where, used: _CANVAS.check_keys(
    hf_diffusion_gemma.text(raw, where), config, where, used
  ),
)
FAMILIES[hf_parscale.FAMILY] = Family(
  parscale.ParScale,
  hf_parscale.from_json,
  hf_parscale.layout,
  parscale.parscale,
  parscale.init,
  hf_parscale.spare,
  hf_parscale.check_keys,
)
# What a network of these would need.
_MISSING = {
  "cohere": "LayerNorm on q and k",
  "falcon_h1": "attention and Mamba-2 beside each other in a layer",
  "phi4flash": "Mamba-1 and differential attention",
}


def _beside_pictures(raw: Mapping[str, Any], where: str) -> Family:
  """The family of the language model of a file that has a tower for pictures, too."""
  text = hf_pictures.language_model(raw, where)
  inner, family = by_type(text, where), raw["model_type"]
  return inner._replace(
    from_json=lambda raw, where="config.json": inner.from_json(text, where),
    layout=lambda config: hf_pictures.within(inner.layout(config), family),
    spare=lambda config: hf_pictures.spare(inner.spare(config), family),
    check_keys=lambda raw, *rest: inner.check_keys(text, *rest),
  )


def by_type(raw: Mapping[str, Any], where: str) -> Family:
  """The family of a config.json; ValueError says what an unknown one would need, if that is
  known."""
  name = hf_config.family_of(raw)
  if name in FAMILIES:
    return FAMILIES[name]
  if name in hf_pictures.TEXTS:
    return _beside_pictures(raw, where)
  kind = next((x for x in _MISSING if name in (x, f"{x}_text")), None)
  if kind is not None:
    raise ValueError(f"{where}: model_type={name!r} has {_MISSING[kind]}, which no layer here has.")
  checks.refuse(f"{where}: model_type", raw.get("model_type"), f"one of {', '.join(FAMILIES)}")


def to_json(
  config: Config | parscale.ParScale, *, mask: bool = False, shift: bool = False
) -> dict[str, Any]:
  """The config.json of a Config, see `hf_config.to_json`, or of a network in parallel streams."""
  if isinstance(config, parscale.ParScale):
    return hf_parscale.to_json(config)
  x, scaling = config.experts, config.rope_scaling
  in_part = config.rotary_dim is not None and x is None
  others = x is not None and (x.shared_gate or (x.router == "sigmoid" and config.causal))
  grows = scaling is not None and (scaling.growth > 0 or scaling.kind == "longrope")
  if mask or not (config.unlike_llama or in_part or others or grows):
    return hf_config.to_json(config, mask=mask, shift=shift)
  raw = hf_rows.to_json(ROWS, config)
  if raw is None:
    own = config.unlike_llama or {"experts": x, "rope_scaling": scaling}
    unlike = ", ".join(f"{name}={value!r}" for name, value in own.items() if value is not None)
    raise ValueError(f"{unlike}: no Hugging Face family has these features together.")
  return raw if config.canvas is None else hf_diffusion_gemma.outer(raw)


def family_of(config: Any) -> Family:
  """The family that has configs of this class."""
  return next(family for family in FAMILIES.values() if type(config) is family.config)


def target(config: Any, *, whole: bool = True) -> Target:
  """The network of a config of any family; without `whole` its cache holds of layers with a sliding
  window the newest rows alone, where the family can."""
  if not whole and isinstance(config, Config) and config.windows and config.causal:
    return transformer.target(config, whole=False)
  return family_of(config).target(config)
