"""GGUF files of Hugging Face directories.

Names of tensors, the order of rotary rows and the stretch of frequencies are those of llama.cpp's
converter, stated anew.
"""

import json
import pathlib
import statistics

import gguf as package
import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

NAMES = {
  "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
  "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
  "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
  "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
}  # fmt: skip
FOUR_NORMS = NAMES | {
  "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
  "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
KEYS = {
  "num_hidden_layers": "block_count", "hidden_size": "embedding_length",
  "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
  "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
  "max_position_embeddings": "context_length", "vocab_size": "vocab_size",
}  # fmt: skip


def name_of(theirs: str, names=NAMES) -> str:
  stem, _, kind = theirs.rpartition(".")
  if stem.startswith("model.layers."):
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{names[part]}.{kind}"
  return f"{names[stem]}.{kind}"


def in_pairs(w: np.ndarray, heads: int) -> np.ndarray:
  """Rows i and i + C / 2 of every head side by side."""
  out, size = np.empty_like(w), len(w) // heads
  for row in range(len(w)):
    head, i = divmod(row, size)
    half, pair = divmod(i, size // 2)
    out[head * size + 2 * pair + half] = w[row]
  return out


def read_directory(directory: pathlib.Path, arch: str):
  """(metadata after the architecture's name, tensors) of the file that says the same."""
  raw = json.loads((directory / "config.json").read_text())
  tensors, names = {}, FOUR_NORMS if arch == "gemma3" else NAMES
  for file in directory.glob("*.safetensors"):
    for name, held in safetensors.numpy.load_file(file).items():
      w = held.astype(np.float32)
      heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
      own = name_of(name, names)
      part = own.split(".")[-2]
      paired = arch in ("llama", "llada") and part in heads
      tensors[own] = in_pairs(w, raw[heads[part]]) if paired else w
      if arch == "gemma3" and "norm" in part:
        tensors[own] = w + 1
  metadata = {ours: raw[key] for key, ours in KEYS.items() if key in raw}
  rope = raw.get("rope_parameters") or {}
  metadata["attention.layer_norm_rms_epsilon"] = raw["rms_norm_eps"]
  metadata["rope.freq_base"] = float(rope.get("rope_theta", raw.get("rope_theta", 1e4)))
  if raw["model_type"] in ("mistral", "gemma3_text"):
    metadata["attention.sliding_window"] = raw["sliding_window"]
  if rope.get("rope_type") == "linear":
    metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
  if rope.get("rope_type") == "llama3":
    tensors["rope_freqs.weight"] = stretch(rope, raw["hidden_size"] // raw["num_attention_heads"])
  return metadata, tensors


# Of the converter: which rows of q and k it pairs, to which norms it adds 1, and its other keys.
PAIRED, LESS_ONE = ("granite", "granitehybrid", "smollm3", "mistral3"), (
  "gemma", "gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe",
)  # fmt: skip
EPSILON = {"rms_norm_eps": "attention.layer_norm_rms_epsilon",
           "layer_norm_eps": "attention.layer_norm_epsilon"}  # fmt: skip
MORE = EPSILON | {
  "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
  "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
  "logit_scale": "logit_scale", "attn_logit_softcapping": "attn_logit_softcapping",
  "final_logit_softcapping": "final_logit_softcapping",
  "sliding_window": "attention.sliding_window",
  "num_experts": "expert_count", "num_local_experts": "expert_count",
  "num_experts_per_tok": "expert_used_count", "top_k_experts": "expert_used_count",
  "moe_intermediate_size": "expert_feed_forward_length",
  "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
ROUTED = {
  "n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count",
  "first_k_dense_replace": "leading_dense_block_count", "norm_topk_prob": "expert_weights_norm",
  "routed_scaling_factor": "expert_weights_scale", "n_group": "expert_group_count",
  "topk_group": "expert_group_used_count", "num_nextn_predict_layers": "nextn_predict_layers",
}  # fmt: skip
OWN = {
  "dots1": ROUTED, "glm4moe": ROUTED,
  "deepseek2": ROUTED | {
    "kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank",
    "v_head_dim": "attention.value_length_mla", "num_nextn_predict_layers": "",
  },
  "gpt-oss": {"intermediate_size": "expert_feed_forward_length"},
  "minimax-m2": {"intermediate_size": "expert_feed_forward_length"},
  "granitehybrid": {
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count", "mamba_n_heads": "ssm.time_step_rank",
  },
  "llama4": {
    "intermediate_size": "expert_feed_forward_length",
    "intermediate_size_mlp": "feed_forward_length",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
  },
}  # fmt: skip
OF_DELTA = ("qwen3next", "qwen35", "qwen35moe")
SSM = {
  "linear_conv_kernel_dim": "ssm.conv_kernel", "linear_key_head_dim": "ssm.state_size",
  "linear_num_key_heads": "ssm.group_count", "linear_num_value_heads": "ssm.time_step_rank",
}  # fmt: skip
# Of GPT-OSS neighbouring outputs are a gate and an up, of Llama 4 the first half are gates.
GATES = {"gpt-oss": (slice(0, None, 2), slice(1, None, 2))}


def in_parts(name: str, w: np.ndarray, arch: str, raw) -> dict[str, np.ndarray]:
  """By names that the package maps: what the converter makes of one tensor of several."""
  turned = w.swapaxes(1, 2) if w.ndim == 3 else w
  name, bias, _ = name.partition("_bias") if ".experts." in name else (name, "", "")
  kind = "bias" if bias else "weight"
  if arch == "gemma4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
    return {f"{name}.weight": w}
  if name.endswith(("layer_scalar", "correct_output_scale")):
    return {f"{name}.weight": w}
  if name.endswith("experts.gate_up_proj"):
    half = turned.shape[1] // 2
    gate, up = GATES.get(arch, (slice(half), slice(half, None)))
    stem = name.removesuffix("gate_up_proj")
    return {f"{stem}gate_proj.{kind}": turned[:, gate], f"{stem}up_proj.{kind}": turned[:, up]}
  if name.endswith("experts.down_proj"):
    return {f"{name}.{kind}": turned}
  if ".input_linear" in name:
    part = "experts." if w.ndim == 3 else "shared_expert." if raw["num_local_experts"] else ""
    stem = f"{name.split('.input_linear')[0].rpartition('.')[0]}.mlp.{part}"
    gate, up = np.split(w, 2, -2)
    return {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
  if ".mamba." in name:
    return mamba(name, w, raw)
  if "linear_attn." in name:
    return recurrent(name, w, arch, raw)
  own = "mlp.shared_expert.down_proj" if raw.get("num_local_experts") else "mlp.down_proj"
  name = name.replace("shared_mlp.output_linear", own)
  name = name.replace("block_sparse_moe.output_linear", "mlp.experts.down_proj")
  if name.endswith("kv_b_proj.weight"):
    heads, plain = raw["num_attention_heads"], raw["qk_nope_head_dim"]
    both = w.reshape(heads, plain + raw["v_head_dim"], -1)
    keys, values = both[:, :plain].swapaxes(1, 2), both[:, plain:]
    return {name.replace("kv_b", "k_b"): keys, name.replace("kv_b", "v_b"): values}
  if name.endswith("router.scale"):
    return {name.replace("router.scale", "router.proj.scale"): w}
  name = name.replace("router.per_expert_scale", "experts.down_proj.scale")
  name = name.replace("e_score_correction_bias", "e_score_correction.bias")
  return {f"{name}.weight" if name.endswith("sinks") else name: w}


def recurrent(name: str, w: np.ndarray, arch: str, raw) -> dict[str, np.ndarray]:
  """`in_parts` of a recurrent layer; of Qwen3.5 value heads go by their number in a key head."""
  K, H = raw["linear_num_key_heads"], raw["linear_num_value_heads"]
  C, F = raw["linear_key_head_dim"], raw["linear_value_head_dim"]
  if "in_proj_qkvz" in name:
    parts = np.split(w.reshape(K, -1, w.shape[1]), np.cumsum([C, C, H // K * F]), 1)
    q, k, v, z = (part.reshape(-1, w.shape[1]) for part in parts)
    stem = name.removesuffix("qkvz.weight")
    return {f"{stem}qkv.weight": np.concatenate([q, k, v]), f"{stem}z.weight": z}
  part, w = name.split("linear_attn.")[1], w[:, 0] if "conv1d" in name else w
  w = -np.exp(w) if part == "A_log" else w
  if arch != "qwen3next" and part != "norm.weight" and "in_proj_ba" not in part:
    width = F if part.split(".")[0] in ("in_proj_qkv", "in_proj_z", "conv1d", "out_proj") else 1
    w = w.T if "out_proj" in part else w
    start = 2 * K * C if part.split(".")[0] in ("in_proj_qkv", "conv1d") else 0
    rows = [start + (k * (H // K) + i) * width + f
            for i in range(H // K) for k in range(K) for f in range(width)]  # fmt: skip
    w = np.concatenate([w[:start], w[rows]])
    w = w.T if "out_proj" in part else w
  return {name.replace("dt_bias", "dt_proj.bias"): w}


def mamba(name: str, w: np.ndarray, raw) -> dict[str, np.ndarray]:
  """`in_parts` of a layer of Mamba-2."""
  part = name.split("mamba.")[1]
  w = -np.exp(w) if part == "A_log" else w
  w = w[:, None] if part in ("A_log", "D") else w
  w = w[:, 0] if part == "conv1d.weight" else w
  w = w.reshape(raw["mamba_n_groups"], -1) if part == "norm.weight" else w
  return {name.replace("dt_bias", "dt_proj.bias"): w}


def of_gemma3n(raw) -> dict:
  """Cut-offs of gates are in deviations from their mean."""
  cuts = [statistics.NormalDist().inv_cdf(x) if x else -np.inf
          for x in raw["activation_sparsity_pattern"]]  # fmt: skip
  return {
    "attention.sliding_window_pattern": [x == "sliding_attention" for x in raw["layer_types"]],
    "attention.shared_kv_layers": raw["num_kv_shared_layers"],
    "altup.num_inputs": raw["altup_num_inputs"], "altup.active_idx": 0,
    "embedding_length_per_layer_input": raw["hidden_size_per_layer_input"],
    "activation_sparsity_scale": cuts,
  }  # fmt: skip


def of_gemma4(raw, known) -> dict:
  """Sizes by the kind of a layer."""
  layers, shared = raw["num_hidden_layers"], raw["num_kv_shared_layers"]
  own = [raw["per_layer_config"].get(str(i), {}) for i in range(layers)]
  wide, narrow = own[-1]["head_dim"], raw["head_dim"]
  widths = [raw["intermediate_size"] * (1 + (i >= layers - shared)) for i in range(layers)]
  slides = [kind == "sliding_attention" for kind in raw["layer_types"]]
  heads = [x.get("num_key_value_heads", raw["num_key_value_heads"]) for x in own]
  return {
    "attention.key_length": wide, "attention.value_length": wide,
    "attention.key_length_swa": narrow, "attention.value_length_swa": narrow,
    "rope.dimension_count": wide, "rope.dimension_count_swa": narrow,
    "attention.sliding_window_pattern": slides, "attention.shared_kv_layers": shared,
    "embedding_length_per_layer_input": raw["hidden_size_per_layer_input"],
    "feed_forward_length": widths if shared else known["feed_forward_length"],
    "attention.head_count_kv": heads,
    "rope.freq_base_swa": raw["rope_parameters"]["sliding_attention"]["rope_theta"],
  }  # fmt: skip


def of_family(directory: pathlib.Path, arch: str):
  """`read_directory` for an architecture whose names are those that the package gguf has."""
  raw = json.loads((directory / "config.json").read_text())
  kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == arch)
  names = package.get_tensor_name_map(MODEL_ARCH(kind), raw["num_hidden_layers"])
  tensors, experts, stored = {}, {}, {}
  for name, w in safetensors.numpy.load_file(directory / "model.safetensors").items():
    stored |= in_parts(name, w, arch, raw)
  for name, w in stored.items():
    name, _, suffix = name.rpartition(".")
    layer, _, part = name.partition(".experts.")
    if part[:1].isdigit():  # NUMBER.gate_proj
      number, _, part = part.partition(".")
      stack = names.get_name(f"{layer}.experts.{part}")
      experts.setdefault(f"{stack}.{suffix}", {})[int(number)] = w
      continue
    own = f"{names.get_name(name) or name}.{suffix}"
    if suffix in ("A_log", "D"):
      own = names.get_name(f"{name}.{suffix}")
    if arch in PAIRED and own.split(".")[-2] in ("attn_q", "attn_k"):
      key = "num_attention_heads" if "attn_q" in own else "num_key_value_heads"
      w = in_pairs(w, raw[key])
    tensors[own] = w + 1 if arch in LESS_ONE and "norm" in own and "ssm" not in own else w
  tensors |= {name: np.stack([ws[i] for i in range(len(ws))]) for name, ws in experts.items()}
  tensors = {name: np.ascontiguousarray(w) for name, w in tensors.items()}
  metadata = {ours: raw[key] for key, ours in (KEYS | MORE).items() if raw.get(key)}
  own = OWN.get(arch, {})
  metadata |= {ours: raw[key] for key, ours in own.items() if ours and raw.get(key) is not None}
  rope = raw.get("rope_parameters") or {}
  rope = rope.get(
    "full_attention" if arch in ("gemma3", "gemma3n", "gemma4") else "sliding_attention", rope
  )
  head = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
  share = rope.get("partial_rotary_factor", 1)
  metadata["attention.key_length"] = metadata["attention.value_length"] = head
  metadata["rope.dimension_count"] = int(head * share)
  if arch == "deepseek2":  # lengths of what the cache holds, and of one head
    turned, rank = raw["qk_rope_head_dim"], raw["kv_lora_rank"]
    metadata |= {"attention.key_length": rank + turned, "attention.value_length": rank}
    metadata |= {"rope.dimension_count": turned, "attention.head_count_kv": 1}
    metadata["attention.key_length_mla"] = raw["qk_nope_head_dim"] + turned
  if raw["model_type"] == "deepseek_v2":
    metadata["expert_gating_func"] = 1
  elif "n_routed_experts" in raw or arch == "minimax-m2":
    metadata["expert_gating_func"] = 2
  if arch == "glm4moe":
    metadata["block_count"] += raw["num_nextn_predict_layers"]
    for i in range(raw["num_hidden_layers"], metadata["block_count"]):
      tensors[f"blk.{i}.nextn.enorm.weight"] = np.ones(raw["hidden_size"], np.float32)
  metadata["rope.freq_base"] = float(rope["rope_theta"])
  if arch == "gemma3n":
    metadata |= of_gemma3n(raw)
    for i in range(raw["num_hidden_layers"] - raw["num_kv_shared_layers"], metadata["block_count"]):
      unused = {f"blk.{i}.attn_{x}.weight": tensors[f"blk.0.attn_{x}.weight"]
                for x in ("k", "v", "k_norm")}  # fmt: skip
      tensors |= unused
    for name in ("altup_projections", "altup_unembed_projections"):
      parts = [tensors.pop(f"model.{name}.{i}.weight") for i in range(raw["altup_num_inputs"] - 1)]
      tensors[f"{names.get_name(f'model.{name}')}.weight"] = np.stack(parts)
  if arch == "gemma4":
    metadata |= of_gemma4(raw, metadata)
    turned = round(rope["partial_rotary_factor"] * metadata["attention.key_length"] / 2)
    still = metadata["attention.key_length"] // 2 - turned
    tensors["rope_freqs.weight"] = np.array([1.0] * turned + [1e30] * still, np.float32)
  if arch in OF_DELTA:
    values = raw["linear_num_value_heads"] * raw["linear_value_head_dim"]
    metadata |= {"ssm.inner_size": values, "full_attention_interval": 2}
    metadata |= {ours: raw[key] for key, ours in SSM.items()}
    if arch != "qwen3next":
      metadata["rope.dimension_sections"] = [1, 1, 0, 0]
  if arch == "granitehybrid":
    heads = {"full_attention": raw["num_key_value_heads"], "linear_attention": 0}
    metadata["attention.head_count_kv"] = [heads[kind] for kind in raw["layer_types"]]
    metadata["ssm.inner_size"] = raw["mamba_expand"] * raw["hidden_size"]
  if raw["model_type"] == "granitemoehybrid":
    metadata["rope.scaling.finetuned"] = raw["position_embedding_type"] == "rope"
  if rope["rope_type"] == "linear":
    metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
  if rope["rope_type"] == "llama3":
    tensors["rope_freqs.weight"] = stretch(rope, head)
  if rope["rope_type"] == "yarn":
    metadata |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"]}
    metadata["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if "mscale_all_dim" in rope:
      weight = rope["mscale_all_dim"] * (0.1 if arch == "deepseek2" else 1.0)
      metadata["rope.scaling.yarn_log_multiplier"] = weight
    if "llama_4_scaling_beta" in rope:
      metadata["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
  if rope["rope_type"] == "longrope":
    original = rope["original_max_position_embeddings"]
    factor = raw["max_position_embeddings"] / original
    metadata["rope.scaling.original_context_length"] = original
    usual = (1 + np.log(factor) / np.log(original)) ** 0.5
    metadata["rope.scaling.attn_factor"] = rope.get("attention_factor", usual)
    for each in ("long", "short"):
      tensors[f"rope_factors_{each}.weight"] = np.array(rope[f"{each}_factor"], np.float32)
  return metadata, tensors


def stretch(rope, head_dim: int) -> np.ndarray:
  """Llama 3.1's: by wavelength, long ones by the factor, short ones not, others in between."""
  factors = []
  for i in range(0, head_dim, 2):
    wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
    turns = rope["original_max_position_embeddings"] / wavelength
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (turns - low) / (high - low) if low < high else 0.0
    inside = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors.append(rope["factor"] if turns < low else 1.0 if turns > high else inside)
  return np.array(factors, np.float32)


def write(file, arch, metadata, tensors, kinds=lambda name, w: Kind.F32, part=0):
  """In parts of so many tensors each, or whole."""
  writer = package.GGUFWriter(file, arch, split_max_tensors=part)
  add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32,
         int: writer.add_uint32, list: writer.add_array,
         np.float64: writer.add_float32}  # fmt: skip
  for key, value in metadata.items():
    whole = key if key.startswith(("tokenizer.", "diffusion.", "split.")) else f"{arch}.{key}"
    add[type(value)](whole, value)
  for name, w in tensors.items():
    kind = kinds(name, w)
    raw = w if w.dtype != np.float32 else quants.quantize(w, kind)
    plain = raw.dtype in (np.float32, np.float16, np.float64, np.int32)
    writer.add_tensor(name, raw, raw_dtype=None if plain else kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return file
