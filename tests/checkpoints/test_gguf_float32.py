"""Files of float32 tensors, against the files that they were made from."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from gguf_writer import read_directory, write

from specjax.checkpoints import gguf, gguf_float32

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "hf"
WORDS = {
  "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.merges": ["a b"],
  "tokenizer.ggml.tokens": ["<end>", "a", "b", "ab", "ü"], "tokenizer.ggml.eos_token_id": 0,
  "tokenizer.ggml.token_type": [3, 1, 1, 1, 1], "tokenizer.ggml.add_bos_token": False,
  "tokenizer.chat_template": "{{ messages[0].content }}",
}  # fmt: skip


def mixed(name, w):
  """Types of tensors as files have them: vectors in float32, matrices in 8 bits where they fit."""
  return Kind.F32 if w.ndim == 1 else Kind.BF16 if w.shape[-1] % 32 else Kind.Q8_0


@pytest.mark.parametrize(("name", "arch"), [("llama1", "llama"), ("qwen2", "qwen2")])
def test_the_model_is_the_same(name, arch, tmp_path):
  metadata, tensors = read_directory(FIXTURES / name, arch)
  source = write(tmp_path / "q8.gguf", arch, metadata | WORDS, tensors, mixed)
  gguf_float32.write(source, tmp_path / "float32.gguf")
  assert {p.name for p in tmp_path.iterdir()} == {"q8.gguf", "float32.gguf"}

  there, here = gguf.load(source), gguf.load(tmp_path / "float32.gguf")
  assert there.config == here.config and there.stop == here.stop == (0,)
  assert jax.tree.all(jax.tree.map(jnp.array_equal, there.params, here.params))
  assert here.template is not None and here.tokenizer is not None
  assert here.tokenizer.encode("abab") == [3, 3]

  before, after = GGUFReader(source), GGUFReader(tmp_path / "float32.gguf")
  assert (
    {t.tensor_type for t in after.tensors} == {Kind.F32} != {t.tensor_type for t in before.tensors}
  )
  assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
  changed = {"general.file_type", "GGUF.kv_count"}
  fields = [{k: (f.types, f.contents()) for k, f in r.fields.items() if k not in changed}
            for r in (before, after)]  # fmt: skip
  assert fields[0] == fields[1]
  assert after.fields["general.file_type"].contents() == 0  # ALL_F32
  for old, new in zip(before.tensors, after.tensors, strict=True):
    if old.tensor_type == Kind.F32:
      np.testing.assert_array_equal(old.data, new.data)


def test_the_main_type_is_that_of_matrices(tmp_path):
  metadata, tensors = read_directory(FIXTURES / "qwen2", "qwen2")
  file = write(tmp_path / "m.gguf", "qwen2", metadata, tensors, mixed)
  assert gguf_float32.main_type(file) == "Q8_0"
