"""The architectures of GGUF files: the keys of each, what a config.json would say of it, and what
llama.cpp takes for silence."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from specjax import checks
from specjax.checkpoints import gguf_delta, gguf_gemma4

_SIZE = functools.partial(checks.whole, least=1)
_NUMBER = functools.partial(checks.number, above=0)
_SIGMOID = functools.partial(checks.whole, least=2, most=2, note="sigmoids")
_EITHER = functools.partial(checks.whole, least=1, most=2, note="a softmax or sigmoids")
Keys = dict[str, tuple[Any, str]]
"""What is accepted of keys after the architecture's name, and their names in a config.json."""


class Architecture(NamedTuple):
  """One of them.

  Attributes:
    model_type: of the config.json.
    says: what else it says.
    keys: beside those that all have, see `Keys`.
    silent: from what is known to what follows, or holds where a file is silent.
    pairs: whether rows of q and k lie in rotary pairs (2i, 2i + 1).
    epsilon: a config.json's name of the norms' epsilon, see `EPSILON`.
    needed: keys that a file must have beside those that all must.
    absent: keys that a file may lack although others must have them.
    told: keys of a config.json that are true where a tensor of this name is there.
    yarn: from what is known to what a YaRN scaling has beside its sizes.
    known: in place of `silent` and of the usual scaling, see `gguf_gemma4.known`; or None.
  """

  model_type: str
  says: Mapping[str, Any] = {}
  keys: Mapping[str, tuple[Any, str]] = {}
  silent: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda raw: {}
  pairs: bool = False
  epsilon: str = "rms_norm_eps"
  needed: tuple[str, ...] = ()
  absent: tuple[str, ...] = ()
  told: Mapping[str, str] = {"attention_bias": "blk.0.attn_q.bias"}
  yarn: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda raw: {}
  known: Callable[..., Mapping[str, Any]] | None = None


EPSILON = {
  "rms_norm_eps": "attention.layer_norm_rms_epsilon",
  "layer_norm_eps": "attention.layer_norm_epsilon",
}  # fmt: skip
_WINDOW: Keys = {"attention.sliding_window": (_SIZE, "sliding_window")}
_CAPS: Keys = {
  "attn_logit_softcapping": (_NUMBER, "attn_logit_softcapping"),
  "final_logit_softcapping": (_NUMBER, "final_logit_softcapping"),
}
_EXPERTS: Keys = {
  "expert_count": (_SIZE, "num_experts"), "expert_used_count": (_SIZE, "num_experts_per_tok"),
}  # fmt: skip
_WIDTH: Keys = {"expert_feed_forward_length": (_SIZE, "moe_intermediate_size")}
_SHARED: Keys = {
  "expert_shared_feed_forward_length": (_SIZE, "shared_expert_intermediate_size"),
}  # fmt: skip
_ROUTED: Keys = {
  "expert_count": (_SIZE, "n_routed_experts"), "expert_used_count": (_SIZE, "num_experts_per_tok"),
  "expert_shared_count": (_SIZE, "n_shared_experts"),
  "expert_gating_func": (_SIGMOID, "scoring_func"),
  "expert_weights_norm": (bool, "norm_topk_prob"),
  "expert_weights_scale": (_NUMBER, "routed_scaling_factor"),
  "expert_group_count": (_SIZE, "n_group"), "expert_group_used_count": (_SIZE, "topk_group"),
  "leading_dense_block_count": (checks.whole, "first_k_dense_replace"),
}  # fmt: skip
_LATENT: Keys = {
  "attention.kv_lora_rank": (_SIZE, "kv_lora_rank"),
  "attention.q_lora_rank": (_SIZE, "q_lora_rank"),
  "attention.key_length": (_SIZE, "cached_keys"),
  "attention.key_length_mla": (_SIZE, "qk_head_dim"),
  "attention.value_length_mla": (_SIZE, "v_head_dim"),
  "rope.dimension_count": (_SIZE, "qk_rope_head_dim"),
}  # fmt: skip
_DELTA: Keys = {
  "ssm.conv_kernel": (_SIZE, "linear_conv_kernel_dim"),
  "ssm.state_size": (_SIZE, "linear_key_head_dim"),
  "ssm.group_count": (_SIZE, "linear_num_key_heads"),
  "ssm.time_step_rank": (_SIZE, "linear_num_value_heads"),
  "ssm.inner_size": (_SIZE, "linear_values"),
  "full_attention_interval": (_SIZE, "full_attention_interval"),
  "nextn_predict_layers": (checks.whole, "num_nextn_predict_layers"),
}  # fmt: skip
_MAMBA: Keys = {
  "ssm.conv_kernel": (_SIZE, "mamba_d_conv"), "ssm.state_size": (_SIZE, "mamba_d_state"),
  "ssm.group_count": (_SIZE, "mamba_n_groups"), "ssm.time_step_rank": (_SIZE, "mamba_n_heads"),
  "ssm.inner_size": (_SIZE, "mamba_inner"),
  "attention.head_count_kv": (tuple[int, ...], "key_heads"),
  "expert_count": (checks.whole, "num_local_experts"),
  "expert_used_count": (checks.whole, "num_experts_per_tok"),
  "expert_shared_feed_forward_length": (_SIZE, "shared_intermediate_size"),
}  # fmt: skip
_SPREAD: Keys = {"rope.scaling.yarn_log_multiplier": (_NUMBER, "mscale_all_dim")}
_BY_INPUT: Keys = {
  "expert_count": (_SIZE, "num_local_experts"), "expert_used_count": (_SIZE, "num_experts_per_tok"),
  "expert_feed_forward_length": (_SIZE, "intermediate_size"),
}  # fmt: skip
_GROWTH = "llama_4_scaling_beta"
_SCALES: Keys = {
  "embedding_scale": (_NUMBER, "embedding_multiplier"), "logit_scale": (_NUMBER, "logits_scaling"),
  "residual_scale": (_NUMBER, "residual_multiplier"),
  "attention.scale": (_NUMBER, "attention_multiplier"),
  "rope.scaling.finetuned": (bool, "position_embedding_type"),
}  # fmt: skip


def _head(raw: Mapping[str, Any]) -> int:
  return raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])


def _mistral(raw: Mapping[str, Any]) -> dict[str, Any]:
  return {"model_type": "mistral"} if "sliding_window" in raw else {}


def _usual(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Where a family's config.json has other defaults."""
  heads = raw["num_attention_heads"]
  return {"head_dim": _head(raw), "rope_theta": 1e4, "num_key_value_heads": heads} | dict(raw)


def _scaled_by_width(raw: Mapping[str, Any], layers: int) -> dict[str, Any]:
  """Gemma's queries are scaled by a head's width, but for a model that this number of layers
  tells."""
  width = raw["hidden_size"] // raw["num_attention_heads"]
  scalar = width if raw["num_hidden_layers"] == layers else _head(raw)
  return _usual(raw) | {"query_pre_attn_scalar": scalar}


def _gemma3(raw: Mapping[str, Any]) -> dict[str, Any]:
  types = {} if "sliding_window" in raw else {"layer_types": ["full_attention"]}
  return _scaled_by_width(raw, 62) | {k: x * raw["num_hidden_layers"] for k, x in types.items()}


def _in_part(raw: Mapping[str, Any]) -> dict[str, Any]:
  return {"partial_rotary_factor": 1.0} | _usual(raw)


def _windows(raw: Mapping[str, Any]) -> dict[str, Any]:
  return {"sliding_window": None} | _usual(raw)


def _olmo(raw: Mapping[str, Any]) -> dict[str, Any]:
  return _usual(raw) | ({"model_type": "olmo3"} if "sliding_window" in raw else {})


def _routed(raw: Mapping[str, Any]) -> dict[str, Any]:
  absent = {"norm_topk_prob": False, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0}
  return absent | {"n_group": 1, "topk_group": 1} | _in_part(raw)


def _glm_moe(raw: Mapping[str, Any]) -> dict[str, Any]:
  """The layers that are counted last are draft heads."""
  layers = raw["num_hidden_layers"] - raw.get("num_nextn_predict_layers", 0)
  return _routed(raw) | {"num_hidden_layers": layers}


def _deepseek(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Its lengths of keys and values are those of the cache; a softmax tells DeepSeek-V2."""
  turned = raw["qk_rope_head_dim"]
  plain = {"qk_nope_head_dim": raw["qk_head_dim"] - turned, "head_dim": turned}
  own = {"q_lora_rank": None} | _routed(raw) | plain
  if raw["scoring_func"] == 2:
    return own
  method = "greedy" if own["n_group"] == 1 else "group_limited_greedy"
  return own | {"model_type": "deepseek_v2", "topk_method": method}


def _granite(raw: Mapping[str, Any]) -> dict[str, Any]:
  """A Granite 4 may have no rotary embedding, which a key of another name says."""
  if raw.get("position_embedding_type", True):
    return _usual(raw)
  return _usual(raw) | {
    "model_type": "granitemoehybrid", "layer_types": ["attention"] * raw["num_hidden_layers"],
    "position_embedding_type": None, "num_local_experts": 0,
    "shared_intermediate_size": raw["intermediate_size"],
  }  # fmt: skip


def _granite_hybrid(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Layers without key heads are those of Mamba-2."""
  inner, heads = raw["mamba_inner"], raw["key_heads"]
  own = {"num_local_experts": 0, "shared_intermediate_size": raw["intermediate_size"]}
  return own | dict(raw) | {
    "head_dim": _head(raw), "num_key_value_heads": max(heads, default=0),
    "layer_types": ["attention" if count else "mamba" for count in heads],
    "position_embedding_type": "rope" if raw.get("position_embedding_type", True) else None,
    "mamba_d_head": inner // raw["mamba_n_heads"], "mamba_expand": inner // raw["hidden_size"],
  }  # fmt: skip


def _llama4(raw: Mapping[str, Any]) -> dict[str, Any]:
  """The model of 128 experts has no norms of q and k."""
  return _usual(raw) | {"use_qk_norm": raw["num_local_experts"] != 128}


def _qwen_next(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Experts make the width of dense MLPs, which are nowhere, unknown; the last are draft heads."""
  layers = raw["num_hidden_layers"] - raw.get("num_nextn_predict_layers", 0)
  own = {"num_hidden_layers": layers, "intermediate_size": raw.get("intermediate_size", 512)}
  return _in_part(raw) | own | gguf_delta.sizes(raw)


def _mistral3(raw: Mapping[str, Any]) -> dict[str, Any]:
  return _usual(raw) | {"model_type": "ministral3"} if _GROWTH in raw else {}


def _mistral3_yarn(raw: Mapping[str, Any]) -> dict[str, Any]:
  own = {key: raw[key] for key in (_GROWTH, "mscale_all_dim") if key in raw}
  return own | {"mscale": 1.0}


def _deepseek_yarn(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Its files have a tenth of the weight, which both spreads have."""
  weight = raw.get("mscale_all_dim")
  return dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * weight, 6)) if weight else {}


_RECURRENT = tuple(key for key in _DELTA if key[:4] == "ssm.")
ARCHITECTURES: dict[str, Architecture] = {
  "llama": Architecture("llama", {}, _WINDOW, _mistral, pairs=True),
  "qwen2": Architecture("qwen2", told={}),
  "qwen3": Architecture("qwen3"),
  "llada": Architecture("llama", {"is_causal": False}, pairs=True),
  "dream": Architecture("Dream"),
  "gemma": Architecture("gemma", {}, {}, _usual),
  "gemma2": Architecture(
    "gemma2", {}, _WINDOW | _CAPS, functools.partial(_scaled_by_width, layers=46)
  ),
  "gemma3": Architecture("gemma3_text", {}, _WINDOW, _gemma3),
  "gemma3n": Architecture(
    "gemma3n_text", {}, gguf_gemma4.KEYS_3N, needed=gguf_gemma4.NEEDED_3N, told={},
    known=gguf_gemma4.known_3n,
  ),
  "gemma4": Architecture(
    "gemma4_text", {}, gguf_gemma4.KEYS, needed=gguf_gemma4.NEEDED, told={},
    known=gguf_gemma4.known,
  ),
  "phi3": Architecture("phi3", {}, _WINDOW, _in_part),
  "olmo2": Architecture("olmo2", {}, _WINDOW, _olmo),
  "olmoe": Architecture("olmoe", {"norm_topk_prob": False}, _EXPERTS, _usual),
  "chatglm": Architecture("glm", {}, {}, _in_part),
  "glm4": Architecture("glm4", {}, {}, _in_part),
  "granite": Architecture("granite", {}, _SCALES, _granite, pairs=True),
  "granitehybrid": Architecture(
    "granitemoehybrid", {}, _SCALES | _MAMBA, _granite_hybrid, pairs=True, told={},
    needed=(*_RECURRENT, "attention.head_count_kv"),
  ),
  "smollm3": Architecture("smollm3", {}, {}, _usual, pairs=True),
  "cohere2": Architecture(
    "cohere2", {}, _WINDOW | {"logit_scale": (_NUMBER, "logit_scale")}, _windows,
    epsilon="layer_norm_eps",
  ),
  "exaone4": Architecture("exaone4", {}, _WINDOW, _windows),
  "seed_oss": Architecture(
    "seed_oss", {}, {}, _usual,
    told={"attention_bias": "blk.0.attn_q.bias", "attention_out_bias": "blk.0.attn_output.bias"},
  ),
  "ernie4_5": Architecture("ernie4_5", {}, {}, _usual),
  "qwen2moe": Architecture(
    "qwen2_moe", {"norm_topk_prob": False}, _EXPERTS | _WIDTH | _SHARED, _usual
  ),
  "qwen3moe": Architecture("qwen3_moe", {"norm_topk_prob": True}, _EXPERTS | _WIDTH, _usual),
  "qwen3next": Architecture(
    "qwen3_next", {"norm_topk_prob": True}, _EXPERTS | _WIDTH | _SHARED | _DELTA, _qwen_next,
    needed=_RECURRENT,
  ),
  "qwen35": Architecture("qwen3_5_text", {}, _DELTA, _qwen_next, needed=_RECURRENT),
  "qwen35moe": Architecture(
    "qwen3_5_moe_text", {}, _EXPERTS | _WIDTH | _SHARED | _DELTA, _qwen_next, needed=_RECURRENT,
    absent=("feed_forward_length",),
  ),
  "dots1": Architecture(
    "dots1", {}, _ROUTED | _WIDTH, _routed, needed=("expert_shared_count", "expert_gating_func")
  ),
  "minimax-m2": Architecture(
    "minimax_m2", {}, _BY_INPUT | {"expert_gating_func": (_SIGMOID, "scoring_func")}, _in_part,
    needed=("expert_count",),
  ),
  "glm4moe": Architecture(
    "glm4_moe", {},
    _ROUTED | _WIDTH | {"nextn_predict_layers": (checks.whole, "num_nextn_predict_layers")},
    _glm_moe, needed=("expert_shared_count",),
    told={"attention_bias": "blk.0.attn_q.bias", "use_qk_norm": "blk.0.attn_q_norm.weight"},
  ),
  "gpt-oss": Architecture(
    "gpt_oss", {}, _WINDOW | _BY_INPUT, _usual, needed=("expert_count", "attention.sliding_window"),
    yarn=lambda raw: {"truncate": False},
  ),
  "deepseek2": Architecture(
    "deepseek_v3", {},
    _ROUTED | _WIDTH | _LATENT | _SPREAD | {"expert_gating_func": (_EITHER, "scoring_func")},
    _deepseek, yarn=_deepseek_yarn,
    needed=(
      "expert_shared_count", "expert_gating_func", "attention.kv_lora_rank",
      "attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count",
    ),
  ),
  "llama4": Architecture(
    "llama4_text", {},
    _BY_INPUT | {
      "feed_forward_length": (_SIZE, "intermediate_size_mlp"),
      "interleave_moe_layer_step": (_SIZE, "interleave_moe_layer_step"),
    },
    _llama4, needed=("expert_count", "expert_feed_forward_length", "interleave_moe_layer_step"),
  ),
  "mistral3": Architecture(
    "llama", {}, _SPREAD | {"attention.temperature_scale": (_NUMBER, _GROWTH)}, _mistral3,
    pairs=True, yarn=_mistral3_yarn,
  ),
}  # fmt: skip
"""By their names in files."""
