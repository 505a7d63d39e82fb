"""GGUF files of families whose layers are not Llama's, written from the fixtures' checkpoints."""

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_writer import of_family, write
from test_families import IDS, directory_of
from test_hf import logits_of

from specjax.checkpoints import gguf, hf

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
# By architecture: the fixture, and what its config.json has otherwise, since files do not say it.
FAMILIES = {
  "gemma": ("gemma", {}), "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}),
  "phi3": ("phi3", {"rope_parameters": LONGROPE}),
  "olmo2": ("olmo2", {}), "olmoe": ("olmoe", {"norm_topk_prob": False}), "glm4": ("glm4", {}),
  "granite": ("granite", {}), "smollm3": ("smollm3", {"no_rope_layers": [1, 1]}),
  "cohere2": ("cohere2", TYPES), "exaone4": ("exaone4", TYPES), "seed_oss": ("seed_oss", {}),
  "ernie4_5": ("ernie4_5", {}), "qwen2moe": ("qwen2_moe", {"mlp_only_layers": []}),
  "qwen3moe": ("qwen2_moe", QWEN3),
}  # fmt: skip


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_file_is_read_as_the_directory(arch, tmp_path):
  name, changes = FAMILIES[arch]
  directory = directory_of(name, tmp_path, **changes)
  file = write(tmp_path / "m.gguf", arch, *of_family(directory, arch))
  got, want = gguf.load(file), hf.load(directory)
  assert got.config == want.config
  for x, y in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-7)  # of 1 + w


def test_olmo_3_is_told_by_its_window(tmp_path):
  directory = directory_of("olmo3", tmp_path, **TYPES)
  file = write(tmp_path / "m.gguf", "olmo2", *of_family(directory, "olmo2"))
  assert gguf.load(file).config == hf.load(directory).config


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


def test_experts_are_not_kept_in_their_bits(tmp_path):
  directory = directory_of("olmoe", tmp_path, norm_topk_prob=False)
  file = write(tmp_path / "m.gguf", "olmoe", *of_family(directory, "olmoe"))
  with pytest.raises(ValueError, match="`weights` must be another for the experts of a GGUF file"):
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
