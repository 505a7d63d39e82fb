"""GGUF files of families whose layers are not Llama's, written from the fixtures' checkpoints."""

import jax
import numpy as np
import pytest
from gguf_writer import of_family, write
from test_families import directory_of

from specjax.checkpoints import gguf, hf

TYPES = {"layer_types": ["sliding_attention"] * 2}
QWEN3 = {
  "model_type": "qwen3_moe", "mlp_only_layers": [], "norm_topk_prob": True, "qkv_bias": None,
  "shared_expert_intermediate_size": None, "layer_types": None, "sliding_window": None,
}  # fmt: skip
# By architecture: the fixture, and what its config.json has otherwise, since files do not say it.
FAMILIES = {
  "gemma": ("gemma", {}), "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}), "phi3": ("phi3", {}),
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
