"""Files that other programs wrote: what is read, what is harmless, and what is refused by name."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

import specjax
from specjax.checkpoints import harmless, hf, hf_config
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.models.rotary import rope_frequencies

LLAMA3 = pathlib.Path(__file__).parents[1] / "fixtures" / "hf" / "llama3"
SIZES = dict(
  vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
  num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
)  # fmt: skip


def read(raw, **more):
  """The config of a config.json in which every key is known."""
  raw = SIZES | raw | more
  config = hf_config.from_json(raw)
  hf_config.check_keys(raw, config, "config.json", ("eos_token_id", "mask_token_id"))
  return config


def defaults(family: str):
  """What the installed transformers writes of a family, at our sizes."""
  config = transformers.AutoConfig.for_model(family, **SIZES)
  return json.loads(config.to_json_string(use_diff=False)), json.loads(config.to_json_string())


FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
# Keys of published files that these classes do not write.
PUBLISHED = {
  "llama": {
    "_name_or_path": "x", "torch_dtype": "bfloat16", "temperature": 1.0, "max_sequence_length": 64,
    "rope_scaling": None, "pretraining_tp": 2, "sliding_window": 9, "use_sliding_window": False,
    "is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"},
    "rotary_dim": 8,
  },
  "qwen2": {"use_mrope": False, "sliding_window": 9, "max_window_layers": 21, "rope_theta": 1e6},
  "qwen3_moe": {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0,
                "num_experts": 8, "num_local_experts": None},
  "mimo": {"num_nextn_predict_layers": 1, "attention_bias": True},
  "Dream": {"mask_token_id": 9, "auto_map": {"AutoModel": "x"}, "max_window_layers": 28},
  "sdar": {"fuse_cross_entropy": True, "debug": False, "block_size": 4, "max_window_layers": 36},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_known(family):
  for raw in defaults(family):
    read(raw, **PUBLISHED.get(family, {}))


@pytest.mark.parametrize("family", sorted(PUBLISHED.keys() - FAMILIES))
def test_what_published_files_have_is_known(family):
  read({"model_type": family}, **PUBLISHED[family])


@pytest.mark.parametrize(
  ("raw", "words"),
  [
    ({"alibi_heads": 2},
     r"`alibi_heads` must be left out, as it is not read and may change the output, got 2\."),
    ({"attn_logit_softcapping": 30.0},
     r"`attn_logit_softcapping` must be left out, as it is not.*got 30\.0\."),
    ({"logits_scaling": 8.0}, r"`logits_scaling` must be 1, for nothing else is read, got 8\.0\."),
    ({"qkv_bias": True}, r"`qkv_bias` must be false, for nothing else is read, got True\."),
    ({"sliding_window": 9}, r"`sliding_window` must be null, for nothing else is read, got 9\."),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ({"model_type": "mistral", "sliding_window": 9, "use_sliding_window": False}, "use_sliding_"),
    ({"model_type": "qwen2", "sliding_window": 9, "layer_types": ["sliding_attention"] * 2},
     "layer_types"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}},
     r"`beta_fast` must be left out, as it is not read and may change the output, got 32\."),
    ({"rope_scaling": {"rope_type": "default", "factor": 2.0}},
     r"`factor` must be 1, for nothing else is read, got 2\.0\."),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    ({"rotary_dim": 4}, r"`rotary_dim` must be 8, for nothing else is read, got 4\."),
    ({"text_config": {"hidden_size": 8}}, "text_config"),
    ({"model_type": "mixtral", "num_experts": 8, "num_local_experts": 4},
     r"`num_experts` must be left out, as it is not read and may change the output, got 8\."),
    ({"model_type": "qwen3_moe", "num_experts": 8, "num_local_experts": 4},
     "num_experts=8 and num_local_experts=4: the two must be the same"),
  ],
)  # fmt: skip
def test_a_key_that_could_change_the_output_is_named(raw, words):
  with pytest.raises(ValueError, match=words):
    read({"model_type": "llama"} | raw)


def test_a_key_is_harmless_at_its_values():
  table = {"a": ..., "b": (1, False), "c_*": ...}
  harmless.known_keys({"a": 1, "b": 1.0, "c_x": [], "d": None, "e": 5}, "f", ["e"], table)
  for raw, words in (
    ({"b": 2}, r"`b` must be 1 or false, for nothing else is read, got 2\."),
    ({"d": 0}, r"`d` must be left out, as it is not read and may change the output, got 0\."),
  ):
    with pytest.raises(ValueError, match=words):
      harmless.known_keys(raw, "f", ["e"], table)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
  "raw",
  [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_scaling": YARN},
    {"rope_parameters": {**YARN, "rope_theta": 5e5}, "rope_scaling": LINEAR, "rope_theta": 7e4},
    {"rope_parameters": {**YARN, "rope_theta": 5e5}, "rope_scaling": None, "rope_theta": 7e4},
    {"rope_parameters": {}, "rope_scaling": LINEAR, "rope_theta": 7e4},
    {"rope_scaling": {**LINEAR, "rope_theta": 5e5}, "rope_theta": 7e4},
    {"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0}},
  ],
)  # fmt: skip
def test_two_places_of_the_rotary_embedding_are_as_transformers_has_them(raw):
  raw = SIZES | {"model_type": "llama"} | raw
  theirs = transformers.LlamaConfig.from_dict(json.loads(json.dumps(raw))).rope_parameters
  want = hf_config.from_json(SIZES | {"model_type": "llama", "rope_parameters": theirs})
  got = hf_config.from_json(raw)
  assert got == want
  np.testing.assert_array_equal(rope_frequencies(got), rope_frequencies(want))


def test_two_original_lengths_are_refused():
  beside = {"model_type": "llama", "rope_scaling": YARN, "original_max_position_embeddings": 32}
  with pytest.raises(ValueError, match="embeddings=32, and in rope_scaling it is 16"):
    hf_config.from_json(SIZES | beside)
  alone = {"rope_scaling": {"type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 32}
  assert hf_config.from_json(SIZES | beside | alone).rope_scaling.original_length == 32


@pytest.fixture
def copied(tmp_path):
  """A directory with other JSON files and tensors."""

  def copy(tensors=None, **files):
    directory = shutil.copytree(LLAMA3, tmp_path / "m")
    for name, raw in files.items():
      file = directory / f"{name}.json"
      before = json.loads(file.read_text()) if file.exists() else {}
      file.write_text(json.dumps(before | raw))
    file = directory / "model.safetensors"
    safetensors.numpy.save_file(safetensors.numpy.load_file(file) | (tensors or {}), file)
    return directory

  return copy


@pytest.mark.parametrize(
  ("files", "words"),
  [
    (
      dict(generation_config={"suppress_tokens": [5]}),
      r"`suppress_tokens` must be \[\], for nothing else is read, got \[5\]\.",
    ),
    (
      dict(generation_config={"forced_eos_token_id": 2}),
      "`forced_eos_token_id` must be left out, as it is not read and may change the output, "
      r"got 2\.",
    ),
    (
      dict(tokenizer_config={"add_eos_token": True}),
      r"`add_eos_token` must be false, for nothing else is read, got True\.",
    ),
    (
      dict(tokenizer_config={"do_lower_case": True}),
      r"`do_lower_case` must be false, for nothing else is read, got True\.",
    ),
    (dict(tokenizer_config={"word_dropout": 0.1}), "word_dropout"),
    (
      dict(special_tokens_map={"merges": 0.1}),
      r"`merges` must be left out, as it is not read and may change the output, got 0\.1\.",
    ),
  ],
)
def test_a_key_of_the_other_files_is_named(files, words, copied):
  with pytest.raises(ValueError, match=words):
    hf.load(copied(**files))


def test_the_ends_of_generation_config_win(copied):
  sampling = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "repetition_penalty": 1.05}
  directory = copied(generation_config=sampling | {"eos_token_id": [7, 9]},
                     config={"eos_token_id": 2})  # fmt: skip
  assert hf.load(directory).stop == (7, 9)


def test_the_tokenizers_end_is_taken_where_no_id_is_given(copied):
  tokenizer = train_bpe(["a b"], 270)
  directory = copied(config={"eos_token_id": None}, generation_config={"eos_token_id": None},
                     tokenizer_config={"eos_token": {"content": "<|end|>"}})  # fmt: skip
  tokenizer.save(directory / "tokenizer.json")
  assert hf.load(directory).stop == (tokenizer.id("<|end|>"),)


def test_a_model_without_a_tokenizer_says_one_thing():
  model = specjax.load(str(LLAMA3))
  for ask in (model.encode, model.chat):
    with pytest.raises(ValueError, match="no tokenizer; pass token ids"):
      ask("hello")


QUANTISED = {
  "quant_method='hqq'": {"quant_method": "hqq", "nbits": 4},
  "quant_method='aqlm'": {"quant_method": "aqlm"},
  "quant_method='fbgemm_fp8'": {"quant_method": "fbgemm_fp8"},
  "quant_method='bitsandbytes'": {"quant_method": "bitsandbytes", "load_in_4bit": True},
  "quant_method='torchao'": {"quant_method": "torchao"},
  "quant_method=\\['awq'\\]": {"quant_method": ["awq"]},
  "quant_algo='NVFP4'": {"quant_algo": "NVFP4"},
  "'bits': 4": {"bits": 4},
}


@pytest.mark.parametrize("words", QUANTISED)
def test_a_quantised_directory_names_its_method(words, copied):
  said = rf"config\.json: quantization_config says .*{words}.*use safetensors in F32.*GGUF.*awq"
  with pytest.raises(ValueError, match=said):
    hf.load(copied(config={"quantization_config": QUANTISED[words]}))


@pytest.mark.parametrize(
  ("files", "words"),
  [
    (dict(config={"compression_config": {"format": "pack-quantized"}}), "pack-quantized"),
    (dict(config={"quantization": {"bits": 4, "group_size": 64}}), "quantization says .*bits"),
    (dict(quantize_config={"bits": 4}), "quantize_config.json says .*bits"),
    (dict(hf_quant_config={"quantization": {"quant_algo": "FP8"}}), "quant_algo='FP8'"),
  ],
)
def test_other_files_that_say_quantised(files, words, copied):
  with pytest.raises(ValueError, match=words + ".*: quantised weights are not read"):
    hf.load(copied(**files))


@pytest.mark.parametrize(
  ("name", "dtype"),
  [
    ("q_proj.qweight", np.int32), ("q_proj.qzeros", np.int32), ("q_proj.scales", np.float16),
    ("q_proj.weight_packed", np.int32), ("q_proj.weight_scale", np.float32),
    ("q_proj.weight_scale_inv", np.float32), ("q_proj.weight.absmax", np.uint8),
    ("q_proj.SCB", np.float32), ("experts.down_proj_blocks", np.uint8), ("q_proj.other", np.uint8),
  ],
)  # fmt: skip
def test_quantised_tensors_without_a_word_about_it(name, dtype, copied):
  name = f"model.layers.0.self_attn.{name}"
  with pytest.raises(ValueError, match=f"tensor {name} .*: quantised weights are not read"):
    hf.load(copied({name: np.ones((2, 2), dtype)}))


def batched(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  inner.enable_truncation(4)
  inner.enable_padding(length=64)
  return inner


def test_prompts_are_never_cut_or_padded(copied, tmp_path):
  text = "a prompt of more tokens than four"
  tokenizer = train_bpe([text], 270)
  want = tokenizer.encode(text)
  assert len(want) > 4
  batched(tokenizer.inner).save(str(tmp_path / "tokenizer.json"))
  directory = copied(tokenizer_config={"model_max_length": 4, "max_length": 4, "padding": "longest",
                                       "truncation_strategy": "longest_first"})  # fmt: skip
  shutil.copy(tmp_path / "tokenizer.json", directory)
  for read in (Tokenizer.load(tmp_path / "tokenizer.json"), hf.load(directory).tokenizer,
               Tokenizer(batched(train_bpe([text], 270).inner))):  # fmt: skip
    assert read.encode(text) == want == [id for id, _ in zip(*read.encode_spans(text), strict=True)]


def test_merges_are_never_left_out_at_random():
  inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.9))
  inner.pre_tokenizer = pre_tokenizers.Whitespace()
  assert Tokenizer(inner).encode("ab " * 50) == [2] * 50
