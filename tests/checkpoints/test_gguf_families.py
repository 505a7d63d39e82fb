"""GGUF files of families whose layers are not Llama's, written from the fixtures' checkpoints."""

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from gguf_writer import of_family, write
from test_families import IDS, directory_of
from test_hf import logits_of

from specjax.checkpoints import gguf, hf
from specjax.models.groups import Groups

TYPES = {"layer_types": ["sliding_attention"] * 2}
QWEN3 = {
  "model_type": "qwen3_moe", "mlp_only_layers": [], "norm_topk_prob": True, "qkv_bias": None,
  "shared_expert_intermediate_size": None, "layer_types": None, "sliding_window": None,
}  # fmt: skip
LONGROPE = {
  "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.5,
  "original_max_position_embeddings": 6, "short_factor": [1.0, 1.25], "long_factor": [1.5, 4.0],
  "attention_factor": 1.5,
}  # fmt: skip
WHOLE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0,
         "original_max_position_embeddings": 6}  # fmt: skip
LLAMA4 = {
  "num_hidden_layers": 4, "no_rope_layers": [], "layer_types": [], "moe_layers": [1, 3],
  "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "floor_scale": 8192,
  "attn_scale": 0.1, "rope_parameters": {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 16.0, "low_freq_factor": 1.0,
    "high_freq_factor": 1.0, "original_max_position_embeddings": 8192,
  },
}  # fmt: skip
SIX = {
  "num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
  "query_pre_attn_scalar": 8, "rope_parameters": {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
  },
}  # fmt: skip
FULL = {"head_dim": 16, "num_key_value_heads": 1}
GEMMA4 = {
  "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 8,
  "attention_k_eq_v": True, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
  "hidden_size_per_layer_input": 0, "per_layer_config": {"1": FULL, "3": FULL},
}  # fmt: skip
GEMMA3N = {
  "rope_parameters": SIX["rope_parameters"] | {
    "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
  },
  "vocab_size_per_layer_input": 32,
}  # fmt: skip
DENSE = {"num_experts_per_tok": 0}
# By architecture and what tells its models apart: the fixture, and what its config.json has
# otherwise, since files do not say it.
FAMILIES = {
  "gemma": ("gemma", {}), "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}),
  "gemma3": ("gemma3_text", SIX), "gemma4": ("gemma4_text", {}),
  "gemma4, experts": ("gemma4_text", GEMMA4), "gemma3n": ("gemma3n_text", GEMMA3N),
  "phi3": ("phi3", {"rope_parameters": LONGROPE}),
  "olmo2": ("olmo2", {}), "olmo2, a window": ("olmo3", TYPES),
  "olmoe": ("olmoe", {"norm_topk_prob": False}), "chatglm": ("glm", {}), "glm4": ("glm4", {}),
  "granite": ("granite", {}), "granite, nothing turns": ("granitemoehybrid", DENSE),
  "granite, 4": ("granitemoehybrid", DENSE | {"position_embedding_type": "rope"}),
  "granitehybrid": ("granite4_hybrid", {}),
  "granitehybrid, dense": (
    "granite4_hybrid", DENSE | {"num_local_experts": 0, "intermediate_size": 12},
  ),
  "smollm3": ("smollm3", {"no_rope_layers": [1, 1]}),
  "cohere2": ("cohere2", TYPES), "exaone4": ("exaone4", TYPES), "seed_oss": ("seed_oss", {}),
  "ernie4_5": ("ernie4_5", {}), "qwen2moe": ("qwen2_moe", {"mlp_only_layers": []}),
  "qwen3moe": ("qwen2_moe", QWEN3), "dots1": ("dots1", {"sliding_window": None}),
  "glm4moe": ("glm4_moe", {}), "minimax-m2": ("minimax_m2", {}),
  "gpt-oss": ("gpt_oss", {"rope_parameters": WHOLE | {"truncate": False}, "swiglu_limit": 7.0,
                          "swiglu_alpha": 1.702}),
  "deepseek2": ("deepseek_v3",
                {"rope_parameters": WHOLE | {"mscale": 2.0, "mscale_all_dim": 2.0}}),
  "qwen3next": ("qwen3_next", {"mlp_only_layers": []}), "qwen35": ("qwen3_5_text", {}),
  "qwen35moe": ("qwen3_5_moe_text", {}),
  "deepseek2, a softmax": (
    "deepseek_v2", {"rope_parameters": WHOLE | {"mscale": 2.0, "mscale_all_dim": 2.0},
                    "topk_method": "greedy", "n_group": None, "topk_group": None},
  ),
  "deepseek2, a softmax in groups": (
    "deepseek_v2", {"rope_parameters": WHOLE | {"mscale": 2.0, "mscale_all_dim": 2.0}},
  ),
  "llama4": ("llama4_text", LLAMA4),
  "mistral3": ("ministral3", {
    "sliding_window": None,
    "rope_parameters": WHOLE | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7},
  }),
}  # fmt: skip


@pytest.mark.parametrize("model", FAMILIES)
def test_a_file_is_read_as_the_directory(model, tmp_path):
  arch, (name, changes) = model.partition(",")[0], FAMILIES[model]
  directory = directory_of(name, tmp_path, **changes)
  file = write(tmp_path / "m.gguf", arch, *of_family(directory, arch))
  got, want = gguf.load(file), hf.load(directory)
  assert got.config == want.config
  for x, y in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-7)  # of 1 + w


def test_parts_of_one_tensor_keep_their_bits(tmp_path):
  """q, k and v are one tensor of Phi-3's files, and gate and up."""
  wide = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
  directory = directory_of("phi3", tmp_path, rope_parameters=LONGROPE, **wide)
  contents = of_family(directory, "phi3")
  file = write(
    tmp_path / "m.gguf", "phi3", *contents, lambda name, w: Kind.Q8_0 if w.ndim > 1 else Kind.F32
  )
  kept, widened = gguf.load(file, weights="native"), gguf.load(file)
  logits = [logits_of(x.config, x.params, IDS) for x in (kept, widened)]
  np.testing.assert_allclose(*logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("arch", "kind"), [("olmoe", Kind.Q4_0), ("gpt-oss", Kind.Q8_0)])
def test_experts_keep_their_bits(arch, kind, tmp_path):
  name, changes = FAMILIES[arch]
  directory = directory_of(name, tmp_path, **changes, hidden_size=32, intermediate_size=32)
  contents = of_family(directory, arch)
  kinds = {x: kind if x.endswith("_exps.weight") else Kind.F32 for x in contents[1]}
  file = write(tmp_path / "m.gguf", arch, *contents, lambda x, w: kinds[x])
  kept, widened = gguf.load(file, weights="native"), gguf.load(file)
  assert kept.params["params"]["layer_0"]["experts"]["expert_gate_up"].shape == (6, 64, 32)
  assert isinstance(kept.params["params"]["layer_0"]["experts"]["expert_down"], Groups)
  logits = [logits_of(x.config, x.params, IDS) for x in (kept, widened)]
  np.testing.assert_allclose(*logits, rtol=0, atol=1e-5)
  kinds["blk.0.ffn_up_exps.weight"] = Kind.Q5_0
  write(file, arch, *contents, lambda x, w: kinds[x])
  with pytest.raises(ValueError, match=r"types of blk\.0\.ffn_gate_exps.* must be one with native"):
    gguf.load(file, weights="native")


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"rope.scaling.type": "yarn"}, "`phi3.rope.scaling.type` must be none or longrope"),
    ({"rope.scaling.original_context_length": None}, "the longrope scaling lacks 'phi3.rope."),
  ],
)
def test_what_longrope_refuses(change, words, tmp_path):
  metadata, tensors = of_family(directory_of("phi3", tmp_path), "phi3")
  metadata = {key: x for key, x in (metadata | change).items() if x is not None}
  with pytest.raises(ValueError, match=words):
    gguf.load(write(tmp_path / "m.gguf", "phi3", metadata, tensors))


def test_experts_in_mxfp4_are_those_of_the_package(tmp_path):
  name, changes = FAMILIES["gpt-oss"]
  directory = directory_of(name, tmp_path, **changes, hidden_size=32, intermediate_size=32)
  metadata, tensors = of_family(directory, "gpt-oss")
  kinds = {x: Kind.MXFP4 if x.endswith("_exps.weight") else Kind.F32 for x in tensors}
  file = write(tmp_path / "m.gguf", "gpt-oss", metadata, tensors, lambda x, w: kinds[x])
  stored = (tensors[f"blk.1.ffn_{x}_exps.weight"] for x in ("gate", "up", "down"))
  gates, ups, downs = (
    quants.dequantize(quants.quantize(w, Kind.MXFP4), Kind.MXFP4) for w in stored
  )
  found = gguf.load(file).params["params"]["layer_1"]["experts"]
  np.testing.assert_array_equal(found["expert_gate_up"], np.concatenate([gates, ups], 1))
  np.testing.assert_array_equal(found["expert_down"], downs)


@pytest.mark.parametrize(
  ("arch", "change", "words"),
  [
    ("dots1", {"expert_gating_func": 1},
     r"`dots1\.expert_gating_func` must be between 2 and 2 \(sigmoids\), got 1\."),
    ("deepseek2", {"attention.key_length": 12},
     r"`deepseek2\.attention\.key_length` must be that of both, 10, got 12\."),
    ("deepseek2", {"attention.key_length_mla": None}, r"lacks 'deepseek2\.attention\.key_length_m"),
    ("gpt-oss", {"attention.sliding_window": None}, r"lacks 'gpt-oss\.attention\.sliding_window'"),
  ],
)  # fmt: skip
def test_what_more_architectures_refuse(arch, change, words, tmp_path):
  name, changes = FAMILIES[arch]
  metadata, tensors = of_family(directory_of(name, tmp_path, **changes), arch)
  metadata = {key: x for key, x in (metadata | change).items() if x is not None}
  with pytest.raises(ValueError, match=words):
    gguf.load(write(tmp_path / "m.gguf", arch, metadata, tensors))
