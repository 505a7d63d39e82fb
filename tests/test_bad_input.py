"""Bad input at every door: one sentence that names the argument or file, and nothing is lost."""

import json
import pathlib
import re
import shutil
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from sentences import says

from specjax import checks, trees
from specjax.checkpoints import formats, hf, hf_config, llama2c, parts
from specjax.checkpoints.hf_layout import HF, layout
from specjax.data import chat, lists, ngram, packing, parallelbench, sources
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.kernels.tree_attention import tree_attention
from specjax.models.any_order import any_order
from specjax.models.config import Config
from specjax.models.denoiser import denoiser
from specjax.models.rotary import rope_frequencies
from specjax.models.transformer import Transformer

HERE = pathlib.Path(__file__).parent
ZOO = HERE.parent / "specjax" / "zoo"
FIXTURES = HERE / "fixtures" / "hf"
DEEP = "[" * 100_000
SURROGATE = "a \ud800 b"
NETWORK = Config(96, 16, 2, 2, 1, 8, 24, max_length=64)


def refused(call, *arguments, **named) -> str:
  """The one sentence with which a call is refused."""
  with pytest.raises(ValueError) as error:
    call(*arguments, **named)
  words = str(error.value)
  assert words.endswith(".") and "\n" not in words and len(words) < 700, words
  return words


def zeros(config: Config):
  """Params of a network, without compiling anything."""
  z, mask = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
  shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), z, z, mask)
  return jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)


def snapshot(directory: pathlib.Path) -> dict[str, bytes]:
  return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
  """A model with a tokenizer, as files that tests copy."""
  path = tmp_path_factory.mktemp("model")
  tokenizer = train_bpe(["the cat sat on the mat, Question: Answer: the dog"] * 2, 280)
  config = Config(tokenizer.vocab_size, 16, 1, 2, 1, 8, 24, max_length=64)
  hf.save(path, config, zeros(config), tokenizer, template=chat.TEMPLATES["qa"])
  return path


@pytest.fixture
def model(model_files, tmp_path):
  """A copy of it that a test may spoil."""
  return pathlib.Path(shutil.copytree(model_files, tmp_path / "model"))


# What config.json holds in place of what belongs there, and words of the sentence.

BASE = json.loads((FIXTURES / "llama3" / "config.json").read_text())
LLADA = {
  "model_type": "llada", "embedding_size": 96, "d_model": 32, "n_layers": 2, "n_heads": 4,
  "mlp_hidden_size": 48,
}  # fmt: skip
CONFIGS = [
  ({"hidden_size": "32"},
   "`hidden_size` must be a whole number between 1 and 2147483647, got '32'."),
  ({"hidden_size": None}, "lacks 'hidden_size'"),
  ({"hidden_size": True},
   "`hidden_size` must be a whole number between 1 and 2147483647, got True."),
  ({"hidden_size": 0}, "`hidden_size` must be between 1 and 2147483647, got 0."),
  ({"hidden_size": 10**12}, "`hidden_size` must be between 1 and 2147483647, got 1000000000000."),
  ({"hidden_size": float("nan")},
   "`hidden_size` must be a whole number between 1 and 2147483647, got nan."),
  ({"vocab_size": 1.5}, "`vocab_size` must be a whole number between 1 and 2147483647, got 1.5."),
  ({"num_hidden_layers": 10**6}, "`num_hidden_layers` must be between 1 and 1024, got 1000000."),
  ({"num_hidden_layers": {}},
   "`num_hidden_layers` must be a whole number between 1 and 1024, got {}."),
  ({"num_attention_heads": 3}, "`heads` must be a multiple of kv_heads=2, got 3."),
  ({"num_key_value_heads": "two"},
   "`num_key_value_heads` must be a whole number between 1 and 2147483647, got 'two'."),
  ({"head_dim": 7}, "`head_dim` must be even, for .. got 7."),
  ({"intermediate_size": []},
   "`intermediate_size` must be a whole number between 1 and 2147483647, got []."),
  ({"max_position_embeddings": "long"},
   "`max_position_embeddings` must be a whole number between 1 and 2147483647, got 'long'."),
  ({"rms_norm_eps": "1e-6"}, "`rms_norm_eps` must be a finite number above 0, got '1e-6'."),
  ({"rms_norm_eps": float("inf")}, "`rms_norm_eps` must be a finite number above 0, got inf."),
  ({"rms_norm_eps": -1}, "`rms_norm_eps` must be above 0, got -1."),
  ({"tie_word_embeddings": "yes"}, "`tie_word_embeddings` must be true or false, got 'yes'."),
  ({"tie_word_embeddings": 1}, "`tie_word_embeddings` must be true or false, got 1."),
  ({"attention_bias": "no"}, "`attention_bias` must be true or false, got 'no'."),
  ({"hidden_act": ["silu"]}, "`hidden_act` must be 'silu', got ['silu']."),
  ({"mlp_bias": "x"}, "`mlp_bias` must be true or false, got 'x'."),
  ({"is_causal": 0}, "`is_causal` must be true or false, got 0."),
  ({"model_type": ["llama"]},
   "`model_type` must be one of llama, mistral, qwen2, qwen3 .. got ['llama']."),
  ({"model_type": {}}, "`model_type` must be one of llama, mistral, qwen2, qwen3 .. got {}."),
  ({"rope_parameters": "default"}, "`rope_parameters` must be an object or null, got 'default'."),
  ({"rope_parameters": [1]}, "`rope_parameters` must be an object or null, got [1]."),
  ({"rope_parameters": {"rope_type": []}}, "`rope_type` must be text, got []."),
  ({"rope_parameters": {"rope_theta": "big"}},
   "`rope_theta` must be a finite number above 0, got 'big'."),
  ({"rope_parameters": {"rope_theta": 0}}, "`rope_theta` must be above 0, got 0."),
  ({"rope_parameters": {"rope_type": "linear", "factor": "2"}},
   "`factor` must be a finite number above 0, got '2'."),
  ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "`factor` must be above 0, got 0."),
  ({"rope_parameters": BASE["rope_parameters"] | {"high_freq_factor": 0.5}},
   "`low_freq_factor` must be a number below high_freq_factor=0.5, got 1.0."),
  ({"rope_parameters": BASE["rope_parameters"] | {"low_freq_factor": None}}, "'low_freq_factor'"),
  ({"rope_theta": None, "rope_parameters": None, "rope_scaling": 3},
   "`rope_scaling` must be an object or null, got 3."),
  ({"model_type": "mistral", "sliding_window": "wide"},
   "`sliding_window` must be a whole number between 1 and 2147483647, got 'wide'."),
  ({"model_type": "mistral", "sliding_window": 0},
   "`sliding_window` must be between 1 and 2147483647, got 0."),
  ({"model_type": "qwen2", "use_sliding_window": "x"},
   "`use_sliding_window` must be true or false, got 'x'."),
  ({"model_type": "qwen2", "layer_types": "full"}, "`layer_types` must be a list, got 'full'."),
  ({"model_type": "qwen2", "layer_types": [1]}, "`layer_types[0]` must be text, got 1."),
  ({"model_type": "qwen2", "max_window_layers": "x"},
   "`max_window_layers` must be a whole number between 0 and 2147483647, got 'x'."),
  (LLADA | {"d_model": "wide"},
   "`d_model` must be a whole number between 1 and 2147483647, got 'wide'."),
  (LLADA | {"n_layers": 2.0}, "`n_layers` must be a whole number between 1 and 1024, got 2.0."),
  (LLADA | {"mlp_hidden_size": None}, "lacks 'mlp_hidden_size'"),
  (LLADA | {"block_type": ["llama"]}, "`block_type` must be 'llama', got ['llama']."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), CONFIGS)
def test_config_json(change, words):
  raw = change if change.get("model_type") == "llada" else BASE | change
  assert says(refused(hf_config.from_json, raw), words)


MUTANTS = (None, "", "x", [], {}, 1.5, -1, 0, 10**12, True)


def mutants(raw: dict):
  """A config with one key replaced, each key by each value, one level deep too."""
  for key, value in raw.items():
    for mutant in MUTANTS:
      yield raw | {key: mutant}
    if isinstance(value, dict):
      for inner in mutants(value):
        yield raw | {key: inner}
    if isinstance(value, list):
      for mutant in MUTANTS:
        yield raw | {key: [*value, mutant]}


MODELS = [*sorted(FIXTURES.glob("*/config.json")), ZOO / "gsm8k-7m" / "config.json",
          ZOO / "lists-3m" / "config.json"]  # fmt: skip


@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.parent.name)
def test_a_mutated_config_json_is_refused_or_usable(file):
  """A network is usable where it has angles, and a shape for every tensor."""
  raw = json.loads(file.read_text())
  loaded = 0
  for mutant in mutants(raw):
    try:
      config = hf_config.from_json(mutant, str(file))
    except ValueError as error:
      assert str(error).startswith(str(file)) and str(error).endswith("."), error
      assert "\n" not in str(error)
      continue
    loaded += 1
    assert np.isfinite(rope_frequencies(config)).all()
    shapes = [part.shape for parts in layout(config, HF).values() for part in parts]
    assert all(type(n) is int and n > 0 for shape in shapes for n in shape)
  assert loaded > 50  # keys that nobody reads, and null


# Files beside config.json.


def index_of(weight_map) -> str:
  return json.dumps({"weight_map": weight_map})


INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
FILES = [  # name, content, words of the sentence
  ("config.json", "[1, 2]", "config.json is no JSON object"),
  ("config.json", "", "config.json is not JSON"),
  ("config.json", "null", "config.json is no JSON object"),
  ("config.json", DEEP, "nested too deeply"),
  ("config.json", b"\xff\xfe{", "config.json is not JSON"),
  ("config.json", None, "cannot be read: Is a directory"),
  ("generation_config.json", "[]", "generation_config.json is no JSON object"),
  ("generation_config.json", "{", "generation_config.json is not JSON"),
  ("generation_config.json", '{"eos_token_id": "2"}',
   "`eos_token_id` must be a whole number between 0 and 2147483647, got '2'."),
  ("generation_config.json", '{"eos_token_id": [2, null]}',
   "`eos_token_id` must be a whole number between 0 and 2147483647, got None."),
  ("generation_config.json", None, "cannot be read: Is a directory"),
  ("tokenizer_config.json", "7", "tokenizer_config.json is no JSON object"),
  ("tokenizer_config.json", '{"add_bos_token": "yes"}',
   "`add_bos_token` must be true or false, got 'yes'."),
  ("tokenizer_config.json", '{"bos_token": 7}', "`bos_token` must be text, got 7."),
  ("tokenizer_config.json", '{"bos_token": {"id": 7}}', "`bos_token` must be text, got None."),
  ("tokenizer_config.json", '{"chat_template": 7}', "`chat_template` must be text, got 7."),
  ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "error in line 1: Expected an exp"),
  ("tokenizer_config.json", '{"chat_template": []}', "lists no template with the name 'default'"),
  ("tokenizer_config.json", '{"chat_template": ["x"]}',
   "`chat_template[0]` must be an object with name and template, got 'x'."),
  ("tokenizer_config.json", '{"chat_template": [{"name": "x"}]}', "[0] lacks 'template'"),
  ("special_tokens_map.json", '{"eos_token": []}', "`eos_token` must be text, got []."),
  ("chat_template.jinja", "{{ }}", "the chat template has an error in line 1: Expected an exp"),
  ("chat_template.jinja", b"\xff", "chat_template.jinja is no UTF-8"),
  ("chat_template.jinja", None, "cannot be read: Is a directory"),
  ("tokenizer.json", "[]", "is no tokenizer.json"),
  ("tokenizer.json", "{}", "is no tokenizer.json"),
  ("tokenizer.json", "", "tokenizer.json is not JSON"),
  ("tokenizer.json", DEEP, "nested too deeply"),
  ("tokenizer.json", None, "cannot be read: Is a directory"),
  (WEIGHTS, b"", "is truncated or no safetensors file"),
  (WEIGHTS, b"garbage" * 20, "is truncated or no safetensors file"),
  (WEIGHTS, struct.pack("<Q", 2**62) + b"{}", "is truncated or no safetensors file"),
  (WEIGHTS, None, "is truncated or no safetensors file"),
  (INDEX, "[]", "index.json is no JSON object"),
  (INDEX, "{}", "`weight_map` must be an object of a file for every tensor, got None."),
  (INDEX, '{"weight_map": ["a"]}',
   "`weight_map` must be an object of a file for every tensor, got ['a']."),
  (INDEX, '{"weight_map": {}}',
   "`weight_map` must be an object of a file for every tensor, got {}."),
  (INDEX, index_of({"a": 7}), "`weight_map` must be the name of a file in the same folder, got 7."),
  (INDEX, index_of({"a": "../x.safetensors"}),
   "`weight_map` must be the name of a file in the same folder, got '../x.safetensors'."),
  (INDEX, index_of({"a": "/etc/passwd"}),
   "`weight_map` must be the name of a file in the same folder, got '/etc/passwd'."),
  (INDEX, index_of({"a": ".."}),
   "`weight_map` must be the name of a file in the same folder, got '..'."),
  (INDEX, index_of({"a": ""}),
   "`weight_map` must be the name of a file in the same folder, got ''."),
  (INDEX, index_of({"a": "absent.safetensors"}), "names absent.safetensors, which is not in"),
  (INDEX, "{", "index.json is not JSON"),
]  # fmt: skip


def spoil(directory: pathlib.Path, name: str, content) -> None:
  """Puts content, or an empty directory, in place of a file."""
  file = directory / name
  file.unlink(missing_ok=True)
  if name == INDEX:
    (directory / WEIGHTS).unlink()
  if content is None:
    file.mkdir()
  else:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(("name", "content", "words"), FILES)
def test_files_of_a_model(model, name, content, words):
  spoil(model, name, content)
  sentence = refused(hf.load, model)
  assert says(sentence, words) and str(model) in sentence


OWN = [
  ({"mask_token_id": "x"},
   "`mask_token_id` must be a whole number between 0 and 2147483647, got 'x'."),
  ({"mask_token_id": 10**6}, "`mask_token_id` must be between 0 and 279, got 1000000."),
  ({"specjax_shift": "x"}, "`specjax_shift` must be true or false, got 'x'."),
  ({"specjax_template": ["qa"]},
   "`specjax_template` must be one of plain, continued, qa .. got ['qa']."),
  ({"eos_token_id": {}}, "`eos_token_id` must be a whole number between 0 and 2147483647, got {}."),
  ({"vocab_size": 2**31 - 1}, "has shape"),
  ({"num_hidden_layers": 2}, "lacks tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), OWN)
def test_what_config_json_says_beside_the_network(model, change, words):
  raw = json.loads((model / "config.json").read_text())
  (model / "config.json").write_text(json.dumps(raw | change))
  (model / "generation_config.json").unlink()
  assert says(refused(hf.load, model), words)


def test_what_cannot_be_saved_leaves_the_files(model):
  before = snapshot(model)
  loaded = hf.load(model)
  bad = jax.tree.map(lambda x: np.asarray(x) * np.nan, loaded.params)
  assert "is not finite" in refused(hf.save, model, loaded.config, bad)
  assert says(
    refused(hf.save, model, loaded.config, loaded.params, template="latin"),
    "`template` must be a JinjaTemplate, or of chat.TEMPLATES .. got 'latin'.",
  )
  assert snapshot(model) == before


# Heads of every format, trees in their files, and small trained parts.

HEAD = {
  "head": "medusa", "config": {"depth": 2, "blocks": 1, "shared": True}, "draft_vocab": None,
  "base": "x", "choices": [[0], [0, 0]], "hit_rates": [[0.5], [0.4]],
}  # fmt: skip
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1}
HYDRA = {
  "hydra_num_heads": 2, "hydra_num_layers": 1, "hydra_head_arch": "mlp", "grounded_heads": True,
  "hidden_state_offset": 0,
}  # fmt: skip
MLP = {"model_type": "mlp_speculator", "n_predict": 2, "emb_dim": 16, "inner_dim": 8,
       "vocab_size": 96, "architectures": ["MLPSpeculatorPreTrainedModel"]}  # fmt: skip
EAGLE = {
  "model_type": "llama", "vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 1,
  "num_attention_heads": 2, "intermediate_size": 24, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
EAGLE3 = EAGLE | {"draft_vocab_size": 32}
HEADS = [
  (HEAD, {"head": ["medusa"]},
   "`head` must be one of medusa, blockwise, chimera, clover .. got ['medusa']."),
  (HEAD, {"head": None}, "`head` must be one of medusa, blockwise, chimera, clover .. got None."),
  (HEAD, {"config": [1]}, "`config` must be a JSON object, got [1]."),
  (HEAD, {"config": {"depth": "2"}},
   "`depth` must be a whole number between 0 and 2147483647, got '2'."),
  (HEAD, {"config": {"depth": 0}}, "`depth` must be between 1 and 64, got 0."),
  (HEAD, {"config": {"depth": 10**9}}, "`depth` must be between 1 and 64, got 1000000000."),
  (HEAD, {"config": {"blocks": 10**9}}, "`blocks` must be between 0 and 64, got 1000000000."),
  (HEAD, {"config": {"shared": "yes"}}, "`shared` must be true or false, got 'yes'."),
  (HEAD, {"config": {"dept": 2}},
   "config: a key must be one of depth, blocks, shared, got 'dept'."),
  (HEAD, {"draft_vocab": "all"},
   "`draft_vocab` must be a whole number between 0 and 2147483647, got 'all'."),
  (HEAD, {"draft_vocab": 97}, "`draft_vocab` must be between 1 and 96, got 97."),
  (HEAD, {"choices": 7}, "`choices` must be a list, got 7."),
  (HEAD, {"choices": [0]}, "`choices[0]` must be a list, got 0."),
  (HEAD, {"choices": [["0"]]},
   "`choices[0][0]` must be a whole number between 0 and 2147483647, got '0'."),
  (HEAD, {"choices": [[0, 0]]}, "but not its parent"),
  (HEAD, {"choices": [[0], [0]]}, "twice"),
  (HEAD, {"hit_rates": "high"}, "`hit_rates` must be a list, got 'high'."),
  (HEAD, {"hit_rates": [[0.5], [0.4, 0.1]]}, "rows of one length"),
  (HEAD, {"hit_rates": [[2]]}, "rates from 0 to 1"),
  (HEAD, {"hit_rates": [[None]]}, "`hit_rates[0][0]` must be a finite number, got None."),
  (MEDUSA, {"medusa_num_heads": "2"},
   "`medusa_num_heads` must be a whole number between 1 and 64, got '2'."),
  (MEDUSA, {"medusa_num_heads": 10**9},
   "`medusa_num_heads` must be between 1 and 64, got 1000000000."),
  (MEDUSA, {"medusa_num_layers": 0}, "`medusa_num_layers` must be between 1 and 64, got 0."),
  (MEDUSA, {"medusa_choices": {"a": 1}}, "`medusa_choices` must be a list, got {'a': 1}."),
  (MEDUSA, {"medusa_choices": [[-1]]},
   "`medusa_choices[0][0]` must be between 0 and 2147483647, got -1."),
  (HYDRA, {"hydra_num_heads": []},
   "`hydra_num_heads` must be a whole number between 1 and 64, got []."),
  (HYDRA, {"hydra_num_layers": True},
   "`hydra_num_layers` must be a whole number between 1 and 64, got True."),
  (MLP, {"n_predict": 1.5}, "`n_predict` must be a whole number between 1 and 64, got 1.5."),
  (MLP, {"inner_dim": None}, "lacks 'inner_dim'"),
  (MLP, {"tie_weights": "x"}, "`tie_weights` must be true or false, got 'x'."),
  (MLP, {"architectures": 7}, "`architectures` must be MLPSpeculatorPreTrainedModel, got 7."),
  (EAGLE, {"specjax_depth": "deep"},
   "`specjax_depth` must be a whole number between 1 and 64, got 'deep'."),
  (EAGLE, {"bias": 1}, "`bias` must be true or false, got 1."),
  (EAGLE, {"architectures": [["x"]]},
   "`architectures` must be LlamaForCausalLM or Qwen2ForCausalLM, got [['x']]."),
  (EAGLE3, {"draft_vocab_size": "32"},
   "`draft_vocab_size` must be a whole number between 1 and 2147483647, got '32'."),
  (EAGLE3, {"draft_vocab_size": None}, "lacks 'draft_vocab_size'"),
  (EAGLE3, {"specjax_taps": "0,1"}, "`specjax_taps` must be a list, got '0,1'."),
  (EAGLE3, {"eagle_config": [1]}, "`eagle_config` must be an object, got [1]."),
  (EAGLE3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "x"}},
   "`eagle_aux_hidden_state_layer_ids` must be a list, got 'x'."),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "change", "words"), HEADS)
def test_config_json_of_a_head(tmp_path, raw, change, words):
  (tmp_path / "config.json").write_text(json.dumps(raw | change))
  names = ("medusa_lm_head", "hydra_lm_head", "model", "head")
  for name in names:
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / f"{name}.safetensors")
  sentence = refused(formats.load, tmp_path, NETWORK)
  assert any(says(sentence, each) for each in words.split("|")), sentence


@pytest.mark.parametrize("raw", [HEAD, MEDUSA, HYDRA, MLP, EAGLE, EAGLE3])
def test_a_mutated_config_json_of_a_head_is_refused(tmp_path, monkeypatch, raw):
  """Without weights every config is refused in the end, and none in another way."""
  monkeypatch.setattr("specjax.checkpoints.heads.abstract", lambda *_: {})
  for mutant in mutants(raw):
    (tmp_path / "config.json").write_text(json.dumps(mutant))
    refused(formats.load, tmp_path, NETWORK)


TREE_FILES = [
  ("[1]", "JSON object|is no tree"), ("{", "is not JSON"), (DEEP, "nested too deeply"),
  ("{}", "is no tree"), ('{"static": {"choices": 7}}', r"`choices` must be a list, got 7\."),
  ('{"static": {"choices": [["a"]]}}', "'a'"), ('{"static": {"choices": [[0.0]]}}', "0.0"),
  ('{"static": {"choices": [[0, 0]]}}', "parent"),
  ('{"dynamic": {"nodes": "16", "depth": 5, "beam": 4}}', "nodes"),
  ('{"dynamic": {"nodes": 16, "depth": 5}}', "beam"), ('{"dynamic": [16, 5, 4]}', "dynamic"),
  ('{"static": {"choices": []}, "iid": {"choices": [[0]]}}', "is no tree"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), TREE_FILES, ids=lambda x: x[:40])
def test_tree_files(tmp_path, text, words):
  (tmp_path / "tree.json").write_text(text)
  assert re.search(words, refused(trees.load, tmp_path / "tree.json"))


def test_float_vocabulary_of_a_head(tmp_path):
  (tmp_path / "config.json").write_text(json.dumps(HEAD | {"draft_vocab": 4}))
  tensors = {
    "params/block_0": np.zeros((2, 16, 16), np.float16), "params/bias_0": np.zeros((2, 16)),
    "vocabulary": np.arange(4, dtype=np.float32),
  }  # fmt: skip
  save_file(tensors, tmp_path / "head.safetensors")
  assert ("dtype of tensor vocabulary must be int32, got 'float32'.") in refused(
    formats.load, tmp_path, NETWORK
  ) or ("tensor vocabulary='float32'" in refused(formats.load, tmp_path, NETWORK))


PARTS = [
  (parts.load_acceptance, {"blocks": "2", "width": 16}, (16,),
   "`blocks` must be a whole number between 0 and 64, got '2'."),
  (parts.load_acceptance, {"blocks": 10**9, "width": 16}, (16,),
   "`blocks` must be between 0 and 64, got 1000000000."),
  (parts.load_acceptance, {"blocks": 2, "width": [16]}, (16,),
   "`width` must be a whole number between 0 and 2147483647, got [16]."),
  (parts.load_acceptance, {"blocks": 2}, (16,), "this is no acceptance head"),
  (parts.load_acceptance, {"blocks": 2, "width": 32}, (16,),
   "for a draft model of width 32, not 16"),
  (parts.load_acceptance, {"blocks": 2, "width": 16}, (16,), "has no acceptance.safetensors"),
  (parts.load_filter, {"policy": "learned", "window": "16"}, (),
   "`window` must be a whole number between 0 and 2147483647, got '16'."),
  (parts.load_filter, {"policy": "learned"}, (), "lacks 'window'"),
  (parts.load_filter, {"policy": ["learned"], "window": 16}, (), "this is no filter"),
  (parts.load_filter, {"policy": "learned", "window": 16}, (), "tensor"),
  (parts.load_energy, {"energy": 7}, (NETWORK,), "this is no energy network"),
  (parts.load_energy, {"energy": "nce"}, (NETWORK,), "lacks 'hidden'"),
  (parts.load_energy, {"energy": "nce", "hidden": 8}, (NETWORK,), "tensor"),
  (parts.load_judge, {"verifier": 7}, (NETWORK,), "this is no judge"),
  (parts.load_judge, {"verifier": "judge"}, (NETWORK,), "tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("load", "raw", "arguments", "words"), PARTS)
def test_small_trained_parts(tmp_path, load, raw, arguments, words):
  (tmp_path / "config.json").write_text(json.dumps(raw))
  save_file({"into_bias": np.zeros((), np.float32)}, tmp_path / "model.safetensors")
  assert says(refused(load, tmp_path, *arguments), words)


@pytest.mark.parametrize("load", [formats.load, parts.load_acceptance, parts.load_judge])
@pytest.mark.parametrize("content", ["", "7", DEEP, "{", None])
def test_a_config_json_that_is_none(tmp_path, load, content):
  spoil(tmp_path, "config.json", content)
  assert str(tmp_path) in refused(
    load, tmp_path, NETWORK if load is not parts.load_acceptance else 16
  )


LLAMA2C = [
  (b"", "has 0 bytes, less than a llama2.c header"),
  (struct.pack("<7i", 16, 24, 1, 0, 1, 264, 32), "is no llama2.c version 0 checkpoint"),
  (struct.pack("<7i", *[2**31 - 2] * 6, 2), "is no llama2.c|its header calls for"),
  (struct.pack("<7i", 16, 24, 1, 2, 1, 264, 32) + b"x", "bytes, its header calls for"),
  (None, "cannot be read: Is a directory"),
]


@pytest.mark.parametrize(("content", "words"), LLAMA2C)
def test_llama2c_files(tmp_path, content, words):
  spoil(tmp_path, "model.bin", content)
  sentence = refused(llama2c.load, tmp_path / "model.bin")
  assert any(says(sentence, each) for each in words.split("|")), sentence


@pytest.mark.parametrize("content", [b"", b"x" * 11, None])
def test_llama2c_tokenizers(tmp_path, content):
  spoil(tmp_path, "tokenizer.bin", content)
  assert "tokenizer.bin" in refused(llama2c.load_tokenizer, tmp_path / "tokenizer.bin", 300)


# Data.

LINES = [
  (b"[1]", "record 1 is not an object"),
  (b"7", "record 1 is not an object"),
  (b"null", "record 1 is not an object"),
  (b"{", "record 1 is not JSON"),
  (DEEP.encode(), "record 1 is not JSON that can be read: it is nested too deeply"),
  (b'{"a": ' * 100_000, "nested too deeply"),
  (b"\xff\xfe\xfa", "record 1 is not JSON"),
]


@pytest.mark.parametrize(("line", "words"), LINES)
def test_lines_of_a_jsonl_file(tmp_path, line, words):
  (tmp_path / "a.jsonl").write_bytes(line + b"\n")
  source = sources.open_source(str(tmp_path / "a.jsonl"))
  sentence = refused(source.__getitem__, 0)
  assert "a.jsonl: record 1 is " in sentence and says(sentence, words)


SPECS = [
  ("", "no such file"), ("no.jsonl", "no such file"), ("x" * 5000, "no such file"),
  ("a\0b", "no such file"), (7, "`data` must be text, got 7."), (None,
   "`data` must be text, got None."),
  (SURROGATE, "lone surrogates"), (".", "no such file"), ("lists:1:0", "holds no records"),
  ("lists:-1:4", "no such file"), (f"lists:1:{10**12}",
   "`count` must be between 0 and 10000000, got 1000000000000."),
  (f"lists:{2**40}:3",
   "`seed` must be between 0 and 4294967295, got "
   "1099511627776."), ("tfds:x", "expected tfds:NAME:SPLIT"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "words"), SPECS)
def test_specs_of_data(spec, words):
  assert says(refused(sources.open_source, spec), words)


RECORDS = [{}, {"question": 7}, {"question": None}, {"question": ["x"]}, {"question": SURROGATE}]


@pytest.mark.parametrize("record", RECORDS)
def test_records_without_text(record):
  assert "record 1" in refused(sources.text_of, record, "question", 0)


TURNS = [
  ("hello", "`turns` must be a list of turns, got 'hello'."),
  (7, "`turns` must be a list of turns, got 7."),
  ({"role": "user", "content": "x"},
   "`turns` must be a list of turns, got {'content': 'x', 'role': 'user'}."),
  (["hello"], "`turns[0]` must be a dict with the texts role and content, got 'hello'."),
  ([{"role": "user"}],
   "`turns[0]` must be a dict with the texts role and content, got {'role': 'user'}."),
  ([{"content": "x"}],
   "`turns[0]` must be a dict with the texts role and content, got {'content': 'x'}."),
  ([{"role": "user", "content": None}], "`content` must be text, got None."),
  ([{"role": "user", "content": ["x"]}],
   '`content` must be text, or parts {"type": "text", "text": ..}, got [\'x\'].'),
  ([{"role": "user", "content": b"x"}], "`content` must be text, got b'x'."),
  ([{"role": "user", "content": SURROGATE}],
   r"`content` must be text without lone surrogates, got 'a \ud800 b'."),
  ([{"role": ["user"], "content": "x"}], "`role` must be text, got ['user']."),
  ([{"role": "tool", "content": "x"}], "role='tool': this template has turns of user, assistant"),
  ([{"role": "system", "content": "x"}], "role='system': this template has turns of"),
  ([{"role": "user", "content": "x"}, {"role": "", "content": "y"}], "turns[1]: role=''"),
]  # fmt: skip


@pytest.mark.parametrize(("turns", "words"), TURNS)
def test_turns_of_a_chat(model_files, turns, words):
  tokenizer = Tokenizer.load(model_files / "tokenizer.json")
  assert says(refused(chat.TEMPLATES["qa"].prompt, tokenizer, turns), words)


@pytest.mark.parametrize("text", [SURROGATE, b"bytes", 7, None, ["a"]])
def test_what_a_tokenizer_does_not_encode(model_files, text):
  assert "`text` must be text" in refused(
    Tokenizer.load(model_files / "tokenizer.json").encode, text
  )


QUESTIONS = ["", ":", ": =", ": Ada =", "fold : Ada =", "copy Ada", "copy : Ada", "7 : Ada ="]


@pytest.mark.parametrize("text", QUESTIONS)
def test_questions_about_lists(text):
  assert f", got {text!r}." in refused(lists.parse, text)


LISTS = [
  ({"seed": -1}, "`seed` must be between 0 and 4294967295, got -1."), ({"seed": 1.5},
   "`seed` must be a whole number between 0 and 4294967295, got 1.5."), ({"count": -1},
   "`count` must be between 0 and 10000000, got -1."),
  ({"count": "3"},
   "`count` must be a whole number between 0 and 10000000, got "
   "'3'."), ({"lengths": (1,)}, "`lengths` must be between 2 and 63, got 1."),
  ({"lengths": (100,)}, "`lengths` must be between 2 and 63, got 100."), ({"lengths": ()},
   "`lengths` must be a list of one or more, got ()."),
  ({"lengths": 3}, "`lengths` must be a list of one or more, got 3."),
  ({"tasks": ()}, "`tasks` must be a list of one or more, got ()."), ({"tasks": "copy"},
   "`tasks` must be a list of one or more, got 'copy'."),
  ({"tasks": ("fold",)}, "`tasks` must be one of copy, sort, reverse, shuffle .. got 'fold'."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), LISTS)
def test_records_about_lists(change, words):
  assert says(refused(lists.records, **({"seed": 0, "count": 3} | change)), words)


PUBLISHED = [
  (DEEP, "nested too deeply"), ("7", "expected an object"), ('{"doc": 7}', "expected an object"),
  ('{"messages": "hi", "label": "[]"}', "`messages` must be a list of turns, got 'hi'."),
  ('{"messages": [], "label": 7}',
   "`label` must be an object with input, the `label` of copy, got "
   "7."), ('{"messages": [], "label": {}}', "lacks 'input'"),
  ('{"messages": [], "label": {"input": "abc"}}', "`input` must be a list, got 'abc'."),
  ('{"messages": [], "label": {"input": [1]}}', "`input[0]` must be text, got 1."),
  ('{"messages": [], "label": {"input": ["a"], "word": 7}}', "`word` must be text, got 7."),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), PUBLISHED)
def test_published_questions(tmp_path, line, words):
  (tmp_path / "copy.jsonl").write_text(line)
  assert says(refused(parallelbench.read, tmp_path / "copy.jsonl"), words)


def test_other_data():
  assert ("`length` must be between 1 and 2147483647, got 0.") in refused(
    packing.pack, [([1], [True])], 0
  )
  assert "documents is empty" in refused(packing.pack, [([], [])], 4)
  assert (
    "`prior` must be a finite number above 0 (at 0 unseen pairs would be impossible), got nan."
  ) in refused(ngram.bigram, [[1]], 4, prior=float("nan"))
  assert "vocabulary has an id outside" in refused(ngram.bigram, [[1]], 4, np.array([4]))
  assert "texts has an id outside" in refused(ngram.bigram, [[9]], 4)


# Networks and kernels, as they are called from Python.

NETWORKS = [
  ({"layers": 0}, "`layers` must be between 1 and 2147483647, got 0."), ({"heads": 2.0},
   "`heads` must be a whole number between 1 and 2147483647, got 2.0."), ({"kv_heads": 0},
   "`kv_heads` must be between 1 and 2147483647, got 0."),
  ({"head_dim": 3}, "`head_dim` must be even, for .. got 3."), ({"width": "16"},
   "`width` must be a whole number between 1 and 2147483647, got '16'."),
  ({"heads": 3, "kv_heads": 2}, "`heads` must be a multiple of kv_heads=2, got 3."),
  ({"vocab_size": -1}, "vocab_size"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), NETWORKS)
def test_networks(change, words):
  sizes = dict(vocab_size=96, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_width=24)
  assert says(refused(Config, **(sizes | change)), words)


def test_denoisers():
  seen = Config(96, 16, 1, 2, 1, 8, 24, causal=False)
  assert ("`causal` must be False for a denoiser, which sees both sides, got True.") in refused(
    denoiser, NETWORK, 5
  )
  for mask in (96, -1, "x", 1.0):
    assert f"got {mask!r}." in refused(denoiser, seen, mask)
  for mask in (96, -1, "x", None, 1.0):
    assert f"got {mask!r}." in refused(any_order, seen, mask)


def test_tree_attention():
  q, k, mask = jnp.zeros((1, 2, 3, 8)), jnp.zeros((1, 1, 4, 8)), jnp.ones((1, 3, 3), bool)
  tree, n = jnp.zeros((1, 1, 3, 8)), jnp.zeros(1, jnp.int32)
  good = (q, k, k, n, tree, tree, mask)
  for i, words in enumerate(("q", "k_cache", "v_cache", "prefix", "k_tree", "v_tree", "tree_mask")):
    bad = [*good[:i], jnp.zeros((2, 3, 5), good[i].dtype), *good[i + 1 :]]
    assert f"`{words}" in (said := refused(tree_attention, *bad)) and "must " in said, said
  assert says(
    refused(tree_attention, *good, implementation="cuda"),
    "`implementation` must be one of reference .. got 'cuda'.",
  )


# The checks themselves.

VALUES = [
  (checks.whole, (2.0,)), (checks.whole, (True,)), (checks.whole, ("2",)), (checks.whole, (None,)),
  (checks.whole, (2**31,)), (checks.whole, (-1,)), (checks.whole, (np.bool_(True),)),
  (checks.whole, (np.zeros(2, int),)), (checks.whole, (10**30, 0, checks.SEED)),
  (checks.number, ("1",)), (checks.number, (True,)), (checks.number, (float("nan"),)),
  (checks.number, (float("inf"),)), (checks.number, (10**400,)), (checks.number, (1j,)),
  (checks.number, (-0.1, 0)), (checks.number, (1.1, 0, 1)), (checks.number, (None,)),
  (checks.boolean, (1,)), (checks.boolean, ("true",)), (checks.text, (b"x",)),
  (checks.text, (SURROGATE,)), (checks.choice, (["a"], "ab")), (checks.choice, ("c", "ab")),
  (checks.texts, ("stop",)), (checks.texts, ([""],)), (checks.texts, ([7],)),
  (checks.ids, ("abc", 9)), (checks.ids, ([9], 9)), (checks.ids, ([True], 9)),
  (checks.ids, ([1.0], 9)), (checks.ids, ({1: 2}, 9)), (checks.ids, (7, 9)),
  (checks.ids, (None, 9)),
]  # fmt: skip


@pytest.mark.parametrize(("check", "arguments"), VALUES)
def test_values(check, arguments):
  assert re.match("`x(\\[0\\])?` must be ", refused(check, "x", *arguments))


def test_good_values_pass():
  assert checks.whole("x", np.int64(3)) == checks.whole("x", jnp.int32(3)) == 3
  assert checks.number("x", np.float32(0.5)) == checks.number("x", 0.5, above=0, most=1) == 0.5
  assert checks.ids("x", np.array([1, 2]), 3) == [1, 2] and checks.texts("x", ["a"]) == ("a",)
