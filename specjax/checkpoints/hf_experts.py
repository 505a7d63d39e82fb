"""The sparse MLPs of a config.json, by the keys that each family has for them.

Letters: X experts, k experts of a token, L layers.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from specjax import checks
from specjax.models.config import Config, Experts

_SIZE = functools.partial(checks.whole, least=1)


class Keys(NamedTuple):
  """What a family calls the sizes of its experts, and what its program takes for absent ones.

  Attributes:
    experts, chosen, width: keys of X, k and the width of an expert; `chosen` is "" where k is X.
    absent: values of `Experts` where config.json lacks their key.
    fixed: fields of `Experts` that the program does not read from config.json.
    only: keys that must have one of these values, for other features are not read; None is absent.
  """

  experts: str
  chosen: str
  width: str
  absent: Mapping[str, Any] = {}
  fixed: Mapping[str, Any] = {}
  only: Mapping[str, tuple[Any, ...]] = {}


_QWEN = Keys(
  "num_experts",
  "num_experts_per_tok",
  "moe_intermediate_size",
  {"count": 128, "chosen": 8, "width": 768, "normalised": False},
)
KEYS = {
  "mixtral": Keys(
    "num_local_experts", "num_experts_per_tok", "intermediate_size", {"count": 8, "chosen": 2}
  ),
  "qwen3_moe": _QWEN,
  "sdar_moe": _QWEN,
  # Its program never normalises, whatever norm_topk_prob says.
  "lladamoe": Keys(
    "num_experts", "num_experts_per_tok", "expert_intermediate_size", fixed={"normalised": False},
    only={
      "shared_expert_intermediate_size": (None, 0), "moe_router_enable_expert_bias": (None, False),
      "moe_router_score_function": (None, "softmax"), "routed_scaling_factor": (None, 1),
      "router_num_group": (None,), "router_topk_group": (None,), "clip_qkv": (None,),
      "qk_layernorm": (True,),
    },
  ),
  "llada2_moe": Keys(
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 16, "chosen": 2, "groups": 8, "chosen_groups": 4, "scale": 2.5},
    {"router": "sigmoid"},
    {
      "score_function": (None, "sigmoid"), "norm_topk_prob": (None, True),
      "use_qk_norm": (None, True), "use_bias": (None, False), "use_qkv_bias": (None, False),
      "norm_head": (None, False),
    },
  ),
  "specjax_blockffn": Keys("num_experts", "", "moe_intermediate_size", fixed={"router": "relu"}),
}  # fmt: skip
# Of rows of `families.ROWS`.
_OF_ROWS = {
  "olmoe": Keys(
    "num_experts", "num_experts_per_tok", "intermediate_size",
    {"count": 64, "chosen": 8, "normalised": False}, only={"clip_qkv": (None,)},
  ),
  "qwen2_moe": Keys(
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 60, "chosen": 4, "width": 1408, "normalised": False},
  ),
  "granitemoehybrid": Keys(
    "num_local_experts", "num_experts_per_tok", "intermediate_size", {"count": 8, "chosen": 2}
  ),
  "qwen3_next": Keys(
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 512, "chosen": 10, "width": 512, "normalised": True},
  ),
  "qwen3_5_moe_text": Keys(
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 256, "chosen": 8, "width": 512}, {"normalised": True},
  ),
  "glm4_moe": Keys(
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 128, "chosen": 8, "width": 1408, "normalised": True, "scale": 1.0, "groups": 1,
     "chosen_groups": 1},
    {"router": "sigmoid"},
  ),
  "dots1": Keys(
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"width": 1408, "normalised": False, "scale": 1.0, "groups": 1, "chosen_groups": 1},
    {"router": "sigmoid"},
  ),
  "minimax_m2": Keys(
    "num_local_experts", "num_experts_per_tok", "intermediate_size",
    {"count": 256, "chosen": 8, "width": 1536}, {"router": "sigmoid"},
  ),
  "bailing_moe_v2": Keys(
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 256, "chosen": 8, "width": 512, "normalised": True, "scale": 1.0, "groups": 8,
     "chosen_groups": 4},
    {"router": "sigmoid"}, {"score_function": (None, "sigmoid")},
  ),
  "deepseek_v3": Keys(
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 256, "chosen": 8, "width": 2048, "normalised": True, "scale": 2.5, "groups": 8,
     "chosen_groups": 4},
    {"router": "sigmoid"},
  ),
  # Its program never normalises, whatever norm_topk_prob says.
  "deepseek_v2": Keys(
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    {"count": 64, "width": 1407, "scale": 1.0}, {"normalised": False},
    {"norm_topk_prob": (None, False)},
  ),
}  # fmt: skip
_MORE = {"normalised": "norm_topk_prob", "scale": "routed_scaling_factor", "groups": "n_group",
         "chosen_groups": "topk_group"}  # fmt: skip
_OF_LLADA2 = ("scale", "groups", "chosen_groups")
_SCHEMA = {
  "norm_topk_prob": bool, "routed_scaling_factor": functools.partial(checks.number, above=0),
  "n_group": _SIZE, "topk_group": _SIZE, "num_shared_experts": int, "first_k_dense_replace": int,
  "decoder_sparse_step": _SIZE, "mlp_only_layers": tuple[int, ...],
  "moe_layer_freq": tuple[int, ...],
}  # fmt: skip


def keys(family: str) -> set[str]:
  """All keys that `read` reads of a config.json of this family."""
  if family not in KEYS:
    return set()
  own = KEYS[family]
  return {own.experts, own.chosen, own.width, "num_local_experts", *own.only, *_SCHEMA}


def _dense_layers(found: Mapping[str, Any], layers: int, where: str) -> int:
  """How many of the first layers are dense; ValueError where later ones are, too."""
  frequency = found.get("moe_layer_freq", (1,) * layers)
  if len(frequency) != layers:
    checks.refuse(f"{where}: moe_layer_freq", frequency, f"a list of {layers} numbers")
  step, own = found.get("decoder_sparse_step", 1), set(found.get("mlp_only_layers", ()))
  sparse = [frequency[i] != 0 and i not in own and (i + 1) % step == 0 for i in range(layers)]
  first = sparse.index(True) if any(sparse) else layers
  first = max(first, found.get("first_k_dense_replace", 0))
  if first >= layers or not all(sparse[first:]):
    shown = [i for i in range(layers) if not sparse[i]]
    raise ValueError(
      f"{where}: layers {shown or first} have a dense MLP, which only the first layers may have, "
      "before all that have experts."
    )
  return first


def read(raw: Mapping[str, Any], family: str, layers: int, where: str) -> Experts | None:
  """The experts of a network of L layers; None for a family of dense ones.

  It raises ValueError for a feature that is not read, a value that is not accepted, and a key that
  is absent and has no default.
  """
  keys = (KEYS | _OF_ROWS).get(family)
  if keys is None:
    return None
  for key, accepted in keys.only.items():
    if raw.get(key) not in accepted:
      said = " or ".join("null" if x is None else repr(x) for x in accepted)
      checks.refuse(f"{where}: {key}", raw.get(key), said)
  # transformers 5 writes all counts by Mixtral's key.
  counts = {
    key: raw[key] for key in (keys.experts, "num_local_experts") if raw.get(key) is not None
  }
  if len(set(counts.values())) > 1:
    said = " and ".join(f"{key}={value}" for key, value in counts.items())
    raise ValueError(f"{where}: {said}: the two must be the same.")
  raw = {**raw, keys.experts: next(iter(counts.values()), None)}
  sizes = {"count": keys.experts, "chosen": keys.chosen, "width": keys.width}
  sizes = {ours: theirs for ours, theirs in sizes.items() if theirs}
  needed = [theirs for ours, theirs in sizes.items() if ours not in keys.absent]
  found = checks.fields_of(raw, _SCHEMA | dict.fromkeys(sizes.values(), _SIZE), where, needed)
  taken = sizes | {x: _MORE[x] for x in keys.absent if x in _MORE}
  values = {**keys.absent, **{x: found[key] for x, key in taken.items() if key in found}}
  values = {"chosen": values["count"], **values, **keys.fixed}
  dense = _dense_layers(found, layers, where)
  shared = found.get("num_shared_experts", 0) if family == "llada2_moe" else 0
  return Experts(**values, shared_width=shared * values["width"], dense_layers=dense)


def family_of(config: Config, mask: bool, shift: bool) -> tuple[str, str]:
  """(model_type, architecture) of a network with experts; see `hf_config.to_json`.

  It raises ValueError where no family has its features together.
  """
  c = config.experts
  assert c is not None
  plain = c.scale == 1 and c.groups == 1 and not c.shared_width and config.rotary_dim is None
  denoiser = mask and not (config.causal or config.window or config.any_order or shift)
  normed, blocks = config.qk_norm and not config.qkv_bias, config.block_length is not None
  if c.router == "sigmoid" and c.normalised and denoiser and normed and blocks:
    return "llada2_moe", "LLaDA2MoeModelLM"
  if c.router == "softmax" and plain and normed:
    if denoiser and blocks:
      return "sdar_moe", "SDARMoeForCausalLM"
    if denoiser and not c.normalised and config.heads * config.head_dim == config.width:
      return "lladamoe", "LLaDAMoEModelLM"
    return "qwen3_moe", "Qwen3MoeForCausalLM"
  unbiased = plain and not (config.qk_norm or config.qkv_bias)
  if unbiased and c.router == "relu":
    return "specjax_blockffn", "BlockFFN"
  if unbiased and c.router == "softmax" and c.normalised and not c.dense_layers:
    return "mixtral", "MixtralForCausalLM"
  checks.refuse(
    "experts",
    c,
    "what a family has together with the other features: Mixtral, "
    "Qwen3-MoE, SDAR-MoE, LLaDA-MoE, LLaDA2 or BlockFFN",
  )


def write(config: Config, family: str) -> dict[str, Any]:
  """The keys of config.json for the experts of a network of this family."""
  c, keys = config.experts, KEYS[family]
  assert c is not None
  raw: dict[str, Any] = {keys.experts: c.count, keys.width: c.width}
  if keys.chosen:
    raw[keys.chosen] = c.chosen
  dense = list(range(c.dense_layers))
  if family in ("qwen3_moe", "sdar_moe", "specjax_blockffn"):
    raw |= {"norm_topk_prob": c.normalised, "decoder_sparse_step": 1, "mlp_only_layers": dense}
  elif family == "lladamoe":
    sparse = [int(i >= c.dense_layers) for i in range(config.layers)]
    raw |= {"moe_layer_freq": sparse, "norm_topk_prob": False, "qk_layernorm": True}
    raw |= {"dense_intermediate_size": config.mlp_width, "routed_scaling_factor": 1}
  elif family == "llada2_moe":
    if c.shared_width % c.width:
      checks.refuse("shared_width", c.shared_width, f"a multiple of width={c.width} in LLaDA2")
    raw |= {_MORE[x]: getattr(c, x) for x in _OF_LLADA2} | {"norm_topk_prob": True}
    raw |= {"num_shared_experts": c.shared_width // c.width, "score_function": "sigmoid"}
    raw |= {"first_k_dense_replace": c.dense_layers, "moe_router_enable_expert_bias": True}
    raw |= {"use_qk_norm": True, "use_bias": False, "use_qkv_bias": False}
    raw["partial_rotary_factor"] = (config.rotary_dim or config.head_dim) / config.head_dim
  return raw
