"""Compares logits of GGUF files of the fixtures' families with those of llama.cpp:

    python tests/checkpoints/gguf_llama_cpp.py [ARCHITECTURE ...]

Needs llama-cpp-python, which computes in float32 here. What it does not have is left out of the
fixtures: windows of Phi-3, and of EXAONE 4 but for its 64 layers; fewer key heads of OLMoE and
dots.llm1; biases of attention's output; draft layers; and, in some, heads that together are wider
than the stream. It rounds the limits of GPT-OSS's YaRN to pairs, which ours are here, too.
"""

import ctypes
import dataclasses
import pathlib
import sys
import tempfile

import llama_cpp as package
import numpy as np
from gguf_writer import of_family, write
from test_families import IDS, directory_of
from test_gguf_families import FAMILIES, LONGROPE, TYPES
from test_hf import logits_of

from specjax.checkpoints import gguf
from specjax.models.config import Config

ROOM = 64
OTHERWISE = {
  "olmo2": {"head_dim": 4}, "cohere2": TYPES | {"head_dim": 4}, "olmoe": {"num_key_value_heads": 4},
  "seed_oss": {"attention_out_bias": False},
  "exaone4": {"head_dim": 4, "sliding_window": None, "layer_types": ["full_attention"] * 2},
  "phi3": {"sliding_window": None, "rope_parameters": LONGROPE},
  "dots1": {"attention_bias": False, "num_key_value_heads": 4},
  "glm4moe": {"num_nextn_predict_layers": 0},
}  # fmt: skip


def theirs(file: pathlib.Path, ids: np.ndarray) -> np.ndarray | None:
  """f32[B, T, V]; None where llama.cpp does not read the file."""
  model = package.llama_model_load_from_file(
    str(file).encode(), package.llama_model_default_params()
  )
  if not model:
    return None
  options = package.llama_context_default_params()
  options.n_ctx = options.n_batch = options.n_ubatch = ROOM
  options.type_k = options.type_v = package.GGML_TYPE_F32
  options.flash_attn_type, options.n_threads, options.n_threads_batch = 0, 1, 1
  V = package.llama_vocab_n_tokens(package.llama_model_get_vocab(model))
  every = []
  for text in ids.tolist():
    context, batch = (
      package.llama_init_from_model(model, options),
      package.llama_batch_init(ROOM, 0, 1),
    )
    batch.n_tokens = len(text)
    for i, token in enumerate(text):
      batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
      batch.seq_id[i][0] = 0
    assert package.llama_decode(context, batch) == 0
    rows = [package.llama_get_logits_ith(context, i) for i in range(len(text))]
    every.append(np.stack([np.ctypeslib.as_array(row, (V,)).copy() for row in rows]))
    package.llama_batch_free(batch)
    package.llama_free(context)
  package.llama_model_free(model)
  return np.stack(every)


def at_pairs(config: Config) -> Config:
  """With the limits of every YaRN at pairs."""
  kinds = [
    dataclasses.replace(kind, rope_scaling=dataclasses.replace(kind.rope_scaling, whole_pairs=True))
    for kind in config.kinds
  ]
  return dataclasses.replace(config, kinds=tuple(kinds))


def main() -> None:
  silent = package.llama_log_callback(lambda level, text, data: None)
  package.llama_log_set(silent, ctypes.c_void_p(0))
  for arch in sys.argv[1:] or FAMILIES:
    name, changes = FAMILIES[arch]
    with tempfile.TemporaryDirectory() as path:
      directory = directory_of(name, pathlib.Path(path), **changes | OTHERWISE.get(arch, {}))
      metadata, tensors = of_family(directory, arch)
      metadata["tokenizer.ggml.model"] = "no_vocab"
      file = write(directory / f"{arch}.gguf", arch, metadata, tensors)
      found, want = gguf.load(file), theirs(file, IDS)
    if want is None:
      print(f"{arch}: not read by llama.cpp", flush=True)
      continue
    config = at_pairs(found.config) if arch == "gpt-oss" else found.config
    apart = np.abs(logits_of(config, found.params, IDS) - want).max()
    print(
      f"{arch}: logits at most {apart:.1e} apart, of at most {np.abs(want).max():.1f}", flush=True
    )


if __name__ == "__main__":
  main()
