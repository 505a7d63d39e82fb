"""Compares logits of GGUF files of the fixtures' families with those of llama.cpp:

    python tests/checkpoints/gguf_llama_cpp.py [MODEL ...]

Needs llama-cpp-python, which computes in float32 here. What it does not have is left out of the
fixtures: windows of Phi-3, and of EXAONE 4 but for its 64 layers; fewer key heads of OLMoE and
dots.llm1; biases of attention's output; draft layers; and, in some, heads that together are wider
than the stream. As it does, we round here the limits of GPT-OSS's YaRN to pairs, and GELU to
float16, and divide the variance of Gemma 3n's F gates by F - 1.
"""

import ctypes
import dataclasses
import pathlib
import statistics
import sys
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import llama_cpp as package
import numpy as np
from gguf_writer import of_family, write
from test_families import IDS, directory_of
from test_gguf_families import FAMILIES, LONGROPE, TYPES
from test_hf import logits_of

from specjax.checkpoints import gguf
from specjax.models.config import Config

ROOM = 64
# Of Gemma 3n it has numbers of its own for what files say: which layers share, which gates are few.
GEMMA3N = {
  "num_hidden_layers": 22, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 256,
  "laurel_rank": 64, "altup_num_inputs": 4, "final_logit_softcapping": 30.0,
  "layer_types": ["full_attention" if i % 5 == 4 else "sliding_attention" for i in range(22)],
  "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12, "intermediate_size": [24] * 22,
}  # fmt: skip
OTHERWISE = {
  "olmo2": {"head_dim": 4}, "cohere2": TYPES | {"head_dim": 4}, "olmoe": {"num_key_value_heads": 4},
  "seed_oss": {"attention_out_bias": False},
  "exaone4": {"head_dim": 4, "sliding_window": None, "layer_types": ["full_attention"] * 2},
  "phi3": {"sliding_window": None, "rope_parameters": LONGROPE},
  "dots1": {"attention_bias": False, "num_key_value_heads": 4},
  "glm4moe": {"num_nextn_predict_layers": 0}, "chatglm": {"head_dim": 4},
  "gemma3n": GEMMA3N,
  "olmo2, a window": {"head_dim": 4},
  **{f"qwen3{x}": {"linear_value_head_dim": 8} for x in ("next", "5", "5moe")},
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


def table(x: jax.Array) -> jax.Array:
  """Its GELU, a table of float16."""
  inside = jax.nn.gelu(x.astype(jnp.float16).astype(jnp.float32)).astype(jnp.float16)
  return jnp.where(x >= 10, x, inside.astype(x.dtype))


def largest(gate: jax.Array, sparsity: float) -> jax.Array:
  """Its gates of Gemma 3n, of which few are not 0."""
  cut = gate.std(-1, keepdims=True, ddof=1) * statistics.NormalDist().inv_cdf(sparsity)
  return jnp.maximum(gate - gate.mean(-1, keepdims=True) - cut, 0)


def at_pairs(config: Config) -> Config:
  """With the limits of every YaRN at pairs."""
  kinds = [
    dataclasses.replace(kind, rope_scaling=dataclasses.replace(kind.rope_scaling, whole_pairs=True))
    for kind in config.kinds
  ]
  return dataclasses.replace(config, kinds=tuple(kinds))


_SILENT = package.llama_log_callback(lambda level, text, data: None)


def apart(model: str) -> float | None:
  """The largest difference of a logit; None where llama.cpp does not read the file."""
  package.llama_log_set(_SILENT, ctypes.c_void_p(0))
  arch, (name, changes) = model.partition(",")[0], FAMILIES[model]
  with tempfile.TemporaryDirectory() as path:
    directory = directory_of(name, pathlib.Path(path), **changes | OTHERWISE.get(model, {}))
    metadata, tensors = of_family(directory, arch)
    metadata["tokenizer.ggml.model"] = "no_vocab"
    file = write(directory / f"{arch}.gguf", arch, metadata, tensors)
    found, want = gguf.load(file), theirs(file, IDS)
  if want is None:
    return None
  config = at_pairs(found.config) if arch == "gpt-oss" else found.config
  with mock.patch("flax.linen.gelu", table), mock.patch("specjax.models.altup.largest", largest):
    return float(np.abs(logits_of(config, found.params, IDS) - want).max())


def main() -> None:
  for model in sys.argv[1:] or FAMILIES:
    found = apart(model)
    said = "not read by llama.cpp" if found is None else f"logits at most {found:.1e} apart"
    print(f"{model}: {said}", flush=True)


if __name__ == "__main__":
  main()
