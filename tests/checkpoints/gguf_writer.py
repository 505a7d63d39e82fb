"""GGUF files of Hugging Face directories.

Names of tensors, the order of rotary rows and the stretch of frequencies are those of llama.cpp's
converter, stated anew.
"""

import json
import pathlib

import gguf as package
import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType as Kind
from gguf import quants

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


def stretch(rope, head_dim: int) -> np.ndarray:
  """Llama 3.1's: by wavelength, long ones by the factor, short ones not, others in between."""
  factors = []
  for i in range(0, head_dim, 2):
    wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
    turns = rope["original_max_position_embeddings"] / wavelength
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (turns - low) / (high - low)
    inside = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors.append(rope["factor"] if turns < low else 1.0 if turns > high else inside)
  return np.array(factors, np.float32)


def write(file, arch, metadata, tensors, kinds=lambda name, w: Kind.F32):
  writer = package.GGUFWriter(file, arch)
  add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32,
         int: writer.add_uint32, list: writer.add_array}  # fmt: skip
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
