"""GGUF files written here, against the Hugging Face directories that they were made from."""

import json
import pathlib
import shutil

import gguf as package
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from gguf_writer import in_pairs, read_directory, write
from test_families import directory_of

import specjax
from specjax.checkpoints import gguf, hf
from specjax.cli.main import main

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "hf"
Q, DOWN = "blk.0.attn_q.weight", "blk.1.ffn_down.weight"


def equal(a, b) -> bool:
  return jax.tree.all(jax.tree.map(jnp.array_equal, a, b))


@pytest.fixture
def edited(tmp_path):
  """Copies a fixture with other config values and more tensors."""

  def copy(name, more=None, **config):
    directory = shutil.copytree(FIXTURES / name, tmp_path / name)
    raw = json.loads((directory / "config.json").read_text()) | config
    (directory / "config.json").write_text(json.dumps(raw))
    file = directory / "model.safetensors"
    if more:
      safetensors.numpy.save_file(safetensors.numpy.load_file(file) | more, file)
    return directory

  return copy


@pytest.mark.parametrize(
  ("name", "arch"),
  [("llama1", "llama"), ("linear", "llama"), ("mistral", "llama"), ("qwen2", "qwen2"),
   ("qwen3", "qwen3")],
)  # fmt: skip
def test_a_file_is_the_directory_it_was_made_of(name, arch, tmp_path):
  file = write(tmp_path / "m.gguf", arch, *read_directory(FIXTURES / name, arch))
  got, want = gguf.load(file), hf.load(FIXTURES / name)
  assert got.config == want.config
  assert equal(got.params, want.params)
  assert (got.tokenizer, got.stop, got.start, got.mask) == (None, (), (), None)
  assert gguf.load(file, jnp.bfloat16).params["params"]["layer_0"]["qkv"].dtype == jnp.bfloat16


def test_the_frequencies_of_llama_3_1(edited, tmp_path):
  rope = json.loads((FIXTURES / "llama3" / "config.json").read_text())["rope_parameters"]
  rope |= {"rope_theta": 5e5, "original_max_position_embeddings": 8192}
  directory = edited("llama3", rope_parameters=rope)
  file = write(tmp_path / "m.gguf", "llama", *read_directory(directory, "llama"))
  assert gguf.load(file).config == hf.load(directory).config


@pytest.mark.parametrize("window", [True, False])
def test_gemma_3_as_llama_cpp_reads_it(window, tmp_path):
  """Five of six layers have the window and a rotary base of 10000, and norms hold 1 + w."""
  kind = "sliding_attention" if window else "full_attention"
  base = 1e4 if window else 1e6
  directory = directory_of("gemma3_text", tmp_path)
  raw = json.loads((directory / "config.json").read_text()) | {
    "layer_types": [kind] * 2, "query_pre_attn_scalar": 8,
    "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base}},
  }  # fmt: skip
  (directory / "config.json").write_text(json.dumps(raw))
  metadata, tensors = read_directory(directory, "gemma3")
  metadata["rope.freq_base"] = 1e6
  if not window:
    del metadata["attention.sliding_window"]
  got = gguf.load(write(tmp_path / "m.gguf", "gemma3", metadata, tensors))
  want = hf.load(directory)
  assert got.config == want.config
  assert equal(got.params, want.params)
  more = write(tmp_path / "n.gguf", "gemma3", metadata | {"block_count": 12}, tensors)
  with pytest.raises(ValueError, match=r"lacks tensor blk\.2\."):
    gguf.load(more)


def test_biases_of_rotated_rows(edited, tmp_path):
  rng, sizes = np.random.default_rng(0), {"q": 32, "k": 16, "v": 16}
  more = {
    f"model.layers.{i}.self_attn.{x}_proj.bias": rng.normal(size=n).astype(np.float32)
    for i in range(2)
    for x, n in sizes.items()
  }
  directory = edited("linear", more, attention_bias=True)
  file = write(tmp_path / "m.gguf", "llama", *read_directory(directory, "llama"))
  got, want = gguf.load(file), hf.load(directory)
  assert got.config == want.config and got.config.qkv_bias
  assert equal(got.params, want.params)


@pytest.mark.parametrize(
  ("name", "arch", "more", "shift"),
  [("llama1", "llada", {"diffusion.shift_logits": False}, False), ("qwen2", "dream", {}, True)],
)
def test_masked_diffusion_models(name, arch, more, shift, edited, tmp_path):
  metadata, tensors = read_directory(FIXTURES / name, arch)
  more = more | {"tokenizer.ggml.mask_token_id": 95}
  got = gguf.load(write(tmp_path / "m.gguf", arch, metadata | more, tensors))
  want = hf.load(edited(name, is_causal=False))
  assert got.config == want.config and not got.config.causal
  assert equal(got.params, want.params)
  assert (got.mask, got.shift) == (95, shift)


WIDE = {
  "block_count": 1, "embedding_length": 256, "feed_forward_length": 256, "context_length": 64,
  "attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 8,
  "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
SHAPES = {
  "token_embd": (8, 256), "output": (8, 256), "output_norm": (256,), "blk.0.attn_norm": (256,),
  "blk.0.ffn_norm": (256,), "blk.0.attn_q": (256, 256), "blk.0.attn_k": (128, 256),
  "blk.0.attn_v": (128, 256), "blk.0.attn_output": (256, 256), "blk.0.ffn_gate": (256, 256),
  "blk.0.ffn_up": (256, 256), "blk.0.ffn_down": (256, 256),
}  # fmt: skip


@pytest.mark.parametrize(
  ("kind", "error"),
  [(Kind.F16, 2e-3), (Kind.BF16, 0.02), (Kind.Q8_0, 0.02), (Kind.Q4_0, 0.4), (Kind.Q4_1, 0.3),
   (Kind.Q5_0, 0.2), (Kind.Q5_1, 0.15)],
  ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_types_of_tensors(kind, error, tmp_path):
  rng = np.random.default_rng(1)
  tensors = {f"{k}.weight": rng.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}
  kinds = lambda name, w: kind if w.ndim > 1 else Kind.F32  # noqa: E731
  file = write(tmp_path / "m.gguf", "qwen2", WIDE | {"attention.head_count_kv": 2}, tensors, kinds)
  with pytest.raises(ValueError, match=r"lacks tensor blk\.0\.attn_q\.bias of shape \(256,\)"):
    gguf.load(file)
  file = write(tmp_path / "n.gguf", "llama", WIDE, tensors, kinds)
  got = gguf.load(file).params["params"]
  for ours, name in {"down": "ffn_down", "out": "attn_output"}.items():
    w = tensors[f"blk.0.{name}.weight"]
    assert 0 < np.abs(got["layer_0"][ours] - w).max() < error
    again = quants.dequantize(quants.quantize(w, kind), kind)
    np.testing.assert_array_equal(got["layer_0"][ours], again)
  w = quants.dequantize(quants.quantize(tensors["blk.0.attn_k.weight"], kind), kind)
  np.testing.assert_array_equal(in_pairs(np.asarray(got["layer_0"]["qkv"][256:384]), 2), w)


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K],
                         ids=lambda kind: kind.name)  # fmt: skip
def test_types_with_groups_of_groups(kind, tmp_path):
  rng = np.random.default_rng(2)
  tensors = {f"{k}.weight": rng.normal(size=s).astype(np.float32) for k, s in SHAPES.items()}
  size = package.GGML_QUANT_SIZES[kind][1]  # bytes below 0x3C make every scale finite
  raw = rng.integers(0x3C, size=(256, size)).astype(np.uint8)
  tensors["blk.0.ffn_down.weight"] = raw
  file = write(tmp_path / "m.gguf", "llama", WIDE, tensors,
               lambda name, w: kind if w.dtype == np.uint8 else Kind.F32)  # fmt: skip
  got = gguf.load(file).params["params"]["layer_0"]["down"]
  assert got.shape == (256, 256) and len(np.unique(got)) > 50
  np.testing.assert_array_equal(got, quants.dequantize(raw, kind))


WORDS = {
  "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe",
  "tokenizer.ggml.tokens": ["a", "b", "<s>", "</s>", "\u0120", "ab"],
  "tokenizer.ggml.token_type": [1, 1, 3, 3, 1, 1], "tokenizer.ggml.merges": ["a b"],
  "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 3,
  "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
}  # fmt: skip


def test_a_converted_file_is_the_same_model(tmp_path, capsys):
  metadata, tensors = read_directory(FIXTURES / "qwen3", "qwen3")
  file = write(tmp_path / "m.gguf", "qwen3", metadata | WORDS, tensors)
  out = tmp_path / "out"
  assert main(["convert", "--format", "gguf", "--model", str(file), "--out", str(out)]) == 0
  assert capsys.readouterr().out == f"wrote {out}\n"
  got, want = specjax.load(str(out)), specjax.load(str(file))
  assert got.config == want.config and equal(got.params, want.params)
  assert (got.stop, got.start) == (want.stop, want.start) == ((3,), (2,))
  assert got.encode("ab a<s>") == want.encode("ab a<s>") == [2, 5, 4, 0, 2]
  assert got.chat("ab a") == want.chat("ab a") == [2, 5, 4, 0]
  assert got.decode([2, 5, 4, 0, 3]) == want.decode([2, 5, 4, 0, 3]) == "ab a"


def without(name):
  return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def put(name, value):
  return lambda tensors: tensors | {name: value}


@pytest.mark.parametrize(
  ("metadata", "tensors", "words"),
  [
    ({}, without(DOWN), r"lacks tensor blk\.1\.ffn_down\.weight of shape \(32, 48\)"),
    ({}, put("blk.0.attn_q_norm.weight", np.ones(8, np.float32)),
     r"has tensor blk\.0\.attn_q_norm\.weight, for which the metadata of m\.gguf has no place"),
    ({}, put(Q, np.ones((32, 16), np.float32)),
     r"tensor blk\.0\.attn_q\.weight has shape \(32, 16\), the metadata of m.gguf calls for"),
    ({}, put(Q, np.ones((32, 32), np.int32)),
     r"type of tensor blk\.0\.attn_q\.weight must be one that the.*got 'I32'\."),
    ({}, put(Q, np.ones((32, 32))),
     r"type of tensor blk\.0\.attn_q\.weight must be one that the.*got 'F64'\."),
    ({}, put("rope_freqs.weight", np.full(4, 2, np.float32)), "rope_freqs.weight stretches"),
    ({}, put("rope_freqs.weight", np.ones(3, np.float32)), "rope_freqs.weight stretches"),
    ({"block_count": 0}, None, r"`llama\.block_count` must be between 1 and 2147483647, got 0\."),
    ({"block_count": 9999}, None, r"`num_hidden_layers` must be between 1 and 1024, got 9999\."),
    ({"block_count": None}, None, r"m\.gguf lacks 'llama\.block_count'"),
    ({"vocab_size": None}, None, r"m\.gguf lacks 'vocab_size'"),
    ({"vocab_size": 95}, None, r"token_embd.weight has shape \(96, 32\).*\(95, 32\)"),
    ({"attention.head_count": "4"}, None,
     r"`llama\.attention\.head_count` must be a whole number between 1 and 2147483647, got "
     r"'4'\."),
    ({"attention.head_count": [4, 4]}, None,
     r"`llama\.attention\.head_count` must be a whole number between 1 and 2147483647, got "
     r"\[4, 4\]\."),
    ({"attention.value_length": 16}, None,
     r"`llama\.attention\.value_length` must be the length of keys, 8, got 16\."),
    ({"rope.dimension_count": 4}, None,
     r"`partial_rotary_factor` must be 1, for whole heads are rotated, got 0\.5\."),
    ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, None,
     r"`rope_type` must be one of default, linear, yarn, llama3, got 'longrope'\."),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, None,
     "lacks 'llama.rope.scaling.original_context_length'"),
    ({"rope.scaling.type": "linear"}, None, "linear rope scaling lacks 'factor'"),
    ({"expert_count": 8}, None, r"`llama\.expert_count` must be between 0 and 0, got 8\."),
  ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(metadata, tensors, words, tmp_path):
  known, weights = read_directory(FIXTURES / "llama1", "llama")
  known = {k: v for k, v in (known | metadata).items() if v is not None}
  file = write(tmp_path / "m.gguf", "llama", known, tensors(weights) if tensors else weights)
  with pytest.raises(ValueError, match=words):
    gguf.load(file)


@pytest.fixture
def parts(tmp_path):
  """The parts of a file, as the package gguf splits it."""
  write(tmp_path / "m.gguf", "llama", *read_directory(FIXTURES / "llama1", "llama"), part=8)
  return sorted(tmp_path.glob("m-*.gguf"))


def test_a_file_in_parts_is_read_as_one(parts, tmp_path):
  assert len(parts) == 3
  whole = write(tmp_path / "m.gguf", "llama", *read_directory(FIXTURES / "llama1", "llama"))
  got, want = gguf.load(parts[0]), gguf.load(whole)
  assert got.config == want.config
  assert jax.tree.all(jax.tree.map(equal, got.params, want.params))


def test_parts_that_are_not_those_of_a_file_are_named(parts):
  with pytest.raises(ValueError, match=r"`name` must be that of the first part, .*-of-00003\.gguf"):
    gguf.load(parts[1])
  parts[1].write_bytes(parts[2].read_bytes())
  with pytest.raises(ValueError, match=r"`split\.no` must be 1 of split\.count=3, got 2\."):
    gguf.load(parts[0])
  parts[1].unlink()
  with pytest.raises(ValueError, match="m-00002-of-00003"):
    gguf.load(parts[0])


def test_an_unknown_architecture_is_named(tmp_path):
  file = write(tmp_path / "m.gguf", "gpt2", {}, {})
  accepted = "llama, qwen2, qwen3, llada, dream, gemma, .*, mistral3"
  with pytest.raises(ValueError, match=rf"`general\.architecture` must be one of {accepted}, got"):
    specjax.load(str(file))


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 100, 1000, 5000, -1])
def test_a_truncated_file_is_named(keep, tmp_path):
  file = write(tmp_path / "m.gguf", "llama", *read_directory(FIXTURES / "llama1", "llama"))
  file.write_bytes(file.read_bytes()[:keep])
  with pytest.raises(ValueError, match=r"m\.gguf is truncated or no GGUF file"):
    gguf.load(file)


def test_other_files_are_named(tmp_path):
  file = tmp_path / "m.gguf"
  with pytest.raises(ValueError, match=r"m\.gguf' is no directory with a config\.json, no GGUF"):
    specjax.load(str(file))
  file.write_bytes(b"PK\3\4" * 100)
  with pytest.raises(ValueError, match=r"m\.gguf is truncated or no GGUF file: .*magic"):
    specjax.load(str(file))
  with pytest.raises(ValueError, match=r"absent\.gguf' cannot be read"):
    gguf.load(tmp_path / "absent.gguf")
