"""Hugging Face directories: the logits of transformers, the way back, and what is refused."""

import json
import pathlib
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from flax.traverse_util import flatten_dict
from tokenizers import processors

from specjax.checkpoints import hf
from specjax.data.chat import TEMPLATES
from specjax.data.tokenizer import Tokenizer, train_bpe
from specjax.models import sharding
from specjax.models.config import Config
from specjax.models.transformer import Transformer, attention_mask, init

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "hf"
NAMES = ("llama1", "llama3", "linear", "mistral", "qwen2", "qwen3", "yarn")
ATOL = 2e-5
TEXTS = ["the cat sat on the mat", "the dog sat on the log, 12 times"]


@jax.jit(static_argnums=0)
def logits_of(config: Config, params, ids):
  """[B, T, V] of one causal pass."""
  model = Transformer(config)
  position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
  mask = attention_mask(jnp.zeros_like(ids), config.causal)
  hidden, _ = model.apply(params, ids, position, mask)
  return model.apply(params, hidden, method="head")


@pytest.fixture(scope="module")
def transformers():
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch", reason="torch is not installed")
    return pytest.importorskip("transformers", reason="transformers is not installed")


def torch_logits(transformers, directory: pathlib.Path, ids: np.ndarray) -> np.ndarray:
  import torch

  with warnings.catch_warnings(), torch.no_grad():
    warnings.simplefilter("ignore")
    model = transformers.AutoModelForCausalLM.from_pretrained(
      directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model(torch.from_numpy(ids).long()).logits.numpy()


@pytest.fixture
def editable(tmp_path):
  """Copies a fixture and rewrites its config and tensors."""

  def copy(name="llama3", config=None, tensors=lambda t: t, drop=()):
    directory = shutil.copytree(FIXTURES / name, tmp_path / name)
    raw = json.loads((directory / "config.json").read_text()) | (config or {})
    raw = {key: value for key, value in raw.items() if key not in drop}
    (directory / "config.json").write_text(json.dumps(raw))
    file = directory / "model.safetensors"
    if file.exists():
      safetensors.numpy.save_file(tensors(safetensors.numpy.load_file(file)), file)
    return directory

  return copy


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
  checkpoint = hf.load(FIXTURES / name)
  expected = np.load(FIXTURES / name / "expected.npz")
  got = logits_of(checkpoint.config, checkpoint.params, expected["ids"])
  np.testing.assert_allclose(got[:, 3::4, ::4], expected["logits"], atol=ATOL)
  assert checkpoint.stop == (2,)
  assert checkpoint.start == ()
  assert checkpoint.tokenizer is None
  assert checkpoint.template is None


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_transformers_installed(name, transformers):
  ids = np.random.default_rng(5).integers(96, size=(2, 40)).astype(np.int32)
  checkpoint = hf.load(FIXTURES / name)
  got = logits_of(checkpoint.config, checkpoint.params, ids)
  np.testing.assert_allclose(got, torch_logits(transformers, FIXTURES / name, ids), atol=ATOL)


@pytest.mark.parametrize("name", NAMES)
def test_export_comes_back_equal(name, tmp_path):
  checkpoint = hf.load(FIXTURES / name)
  hf.save(
    tmp_path,
    checkpoint.config,
    checkpoint.params,
    stop=(5, 7),
    template=TEMPLATES["qa"],
    dtype=jnp.float32,
  )
  again = hf.load(tmp_path)
  assert again.config == checkpoint.config
  assert again.stop == (5, 7)
  assert again.template == TEMPLATES["qa"]
  assert jax.tree.all(jax.tree.map(jnp.array_equal, again.params, checkpoint.params))


@pytest.mark.parametrize("name", NAMES)
def test_transformers_reads_the_export(name, tmp_path, transformers):
  checkpoint = hf.load(FIXTURES / name)
  hf.save(tmp_path, checkpoint.config, checkpoint.params, dtype=jnp.float32)
  expected = np.load(FIXTURES / name / "expected.npz")
  got = torch_logits(transformers, tmp_path, expected["ids"])
  # Both are torch's, of two versions and machines, which round otherwise.
  np.testing.assert_allclose(got[:, 3::4, ::4], expected["logits"], atol=5e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_on_disk_and_in_memory(dtype, tmp_path):
  checkpoint = hf.load(FIXTURES / "qwen2")
  hf.save(tmp_path, checkpoint.config, checkpoint.params, dtype=dtype)
  rounded = jax.tree.map(lambda p: p.astype(dtype), checkpoint.params)
  kept, widened = hf.load(tmp_path, dtype), hf.load(tmp_path)
  assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype, kept.params, rounded))
  assert jax.tree.all(jax.tree.map(jnp.array_equal, kept.params, rounded))
  same = jax.tree.map(lambda w, r: jnp.array_equal(w, r.astype(w.dtype)), widened.params, rounded)
  assert jax.tree.all(same)


def test_what_does_not_fit_float16_is_not_written(tmp_path):
  checkpoint = hf.load(FIXTURES / "llama3")
  checkpoint.params["params"]["layer_1"]["down"] *= 1e6
  with pytest.raises(ValueError, match=r"layers\.1\.mlp\.down_proj\.weight is not finite .*16"):
    hf.save(tmp_path / "out", checkpoint.config, checkpoint.params)
  assert not (tmp_path / "out").exists()


@pytest.fixture
def with_tokenizer(tmp_path):
  checkpoint = hf.load(FIXTURES / "llama1")
  tokenizer = train_bpe(TEXTS, 280)
  hf.save(tmp_path, checkpoint.config, checkpoint.params, tokenizer, template=TEMPLATES["qa"])
  return tmp_path, tokenizer


def test_tokenizer_and_stop_travel(with_tokenizer):
  directory, tokenizer = with_tokenizer
  again = hf.load(directory)
  assert again.stop == (tokenizer.id("<|end|>"),)
  assert again.start == ()
  for text in [*TEXTS, "né <|end|>"]:
    assert again.tokenizer.encode(text) == tokenizer.encode(text)


def test_transformers_reads_tokenizer_and_stop(with_tokenizer, transformers):
  directory, tokenizer = with_tokenizer
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    generation = transformers.GenerationConfig.from_pretrained(directory)
  assert theirs.eos_token_id == tokenizer.id("<|end|>")
  assert generation.eos_token_id == [tokenizer.id("<|end|>")]
  for text in [*TEXTS, "né <|end|>"]:
    assert theirs(text)["input_ids"] == tokenizer.encode(text)


@pytest.mark.parametrize(
  ("processor", "settings", "start"),
  [
    (True, {}, (1,)),
    (True, {"add_bos_token": False}, ()),
    (False, {}, ()),
    (False, {"add_bos_token": True, "bos_token": "<s>"}, (1,)),
    (False, {"add_bos_token": True, "bos_token": {"content": "<s>"}}, (1,)),
  ],
)
def test_ids_before_a_text(processor, settings, start, editable):
  directory = editable()
  inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "<s>": 1, "b": 2}, []))
  inner.add_special_tokens(["<s>"])
  if processor:
    inner.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", 1)]
    )
  Tokenizer(inner).save(directory / "tokenizer.json")
  (directory / "tokenizer_config.json").write_text(json.dumps(settings))
  checkpoint = hf.load(directory)
  assert checkpoint.start == start
  assert checkpoint.tokenizer.encode("ab") == [0, 2]


def test_a_start_token_without_an_id_is_an_error(editable):
  directory = editable()
  inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
  Tokenizer(inner).save(directory / "tokenizer.json")
  settings = {"add_bos_token": True, "bos_token": "<s>"}
  (directory / "tokenizer_config.json").write_text(json.dumps(settings))
  with pytest.raises(ValueError, match="bos_token='<s>'"):
    hf.load(directory)


UP = "model.layers.1.mlp.up_proj.weight"


def without(tensors):
  return {name: value for name, value in tensors.items() if name != UP}


def narrowed(tensors):
  return tensors | {UP: np.ascontiguousarray(tensors[UP][:, :-1])}


def with_output_bias(tensors):
  return tensors | {"model.layers.0.self_attn.o_proj.bias": np.zeros(32, np.float32)}


def as_integers(tensors):
  return tensors | {UP: tensors[UP].astype(np.int8)}


@pytest.mark.parametrize(
  ("tensors", "words"),
  [
    (without, r"lacks tensor model\.layers\.1\.mlp\.up_proj\.weight of shape \(48, 32\)"),
    (narrowed, r"up_proj\.weight has shape \(48, 31\), config.json calls for \(48, 32\)"),
    (with_output_bias, r"has tensor model\.layers\.0\.self_attn\.o_proj\.bias"),
    (
      as_integers,
      r"the dtype of tensor model\.layers\.1\.mlp\.up_proj\.weight must be one of F32, F16, "
      r"BF16, got I8\.",
    ),
  ],
)
def test_wrong_tensors_are_named(tensors, words, editable):
  with pytest.raises(ValueError, match=words):
    hf.load(editable(tensors=tensors))


def test_tensors_without_a_meaning_are_ignored(editable):
  extra = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
    "lm_head.weight": np.ones((96, 32), np.float32),
  }
  directory = editable(tensors=lambda t: t | extra)
  expected = np.load(directory / "expected.npz")
  checkpoint = hf.load(directory)
  got = logits_of(checkpoint.config, checkpoint.params, expected["ids"])
  np.testing.assert_allclose(got[:, 3::4, ::4], expected["logits"], atol=ATOL)


@pytest.mark.parametrize("keep", [4, 1000, -1])
def test_a_truncated_file_is_named(keep, editable):
  file = editable() / "model.safetensors"
  file.write_bytes(file.read_bytes()[:keep])
  with pytest.raises(ValueError, match=r"model\.safetensors is truncated"):
    hf.load(file.parent)


def test_an_absent_shard_is_named(editable):
  directory = editable("llama1")
  shard = sorted(directory.glob("model-*.safetensors"))[1]
  shard.unlink()
  with pytest.raises(ValueError, match=f"index.json names {shard.name}"):
    hf.load(directory)


def test_absent_and_broken_files_are_named(editable, tmp_path):
  with pytest.raises(ValueError, match=r"has no config\.json"):
    hf.load(tmp_path)
  directory = editable()
  (directory / "model.safetensors").unlink()
  with pytest.raises(ValueError, match=r"neither model\.safetensors nor"):
    hf.load(directory)
  (directory / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json is not JSON"):
    hf.load(directory)


def test_an_unknown_template_is_named(editable, tmp_path):
  with pytest.raises(
    ValueError, match=(r"`specjax_template` must be one of plain, continued, qa.*got 'latin'\.")
  ):
    hf.load(editable(config={"specjax_template": "latin"}))
  checkpoint = hf.load(FIXTURES / "llama3")
  with pytest.raises(
    ValueError, match=(r"`template` must be a JinjaTemplate, or of chat\.TEMPLATES.*got 'latin'\.")
  ):
    hf.save(tmp_path / "out", checkpoint.config, checkpoint.params, template="latin")


def test_params_of_another_config_are_not_written(tmp_path):
  checkpoint, other = hf.load(FIXTURES / "llama3"), hf.load(FIXTURES / "qwen3")
  with pytest.raises(ValueError, match=r"params has no place for|params lacks"):
    hf.save(tmp_path, checkpoint.config, other.params)
  checkpoint.params["params"]["layer_0"]["qkv"] = jnp.zeros((3, 32))
  with pytest.raises(ValueError, match=r"layer_0/qkv has shape \(3, 32\).*\(64, 32\)"):
    hf.save(tmp_path, checkpoint.config, checkpoint.params)


WIDE = Config(vocab_size=160, width=128, layers=1, heads=4, kv_heads=4, head_dim=32, mlp_width=160)


@pytest.fixture
def in_8_bits(tmp_path):
  params = init(WIDE, jax.random.key(0))
  hf.save(tmp_path, WIDE, params, dtype=jnp.int8)
  return tmp_path, params


@pytest.mark.slow
def test_a_model_in_8_bits_has_the_values_of_its_steps(in_8_bits, mesh):
  directory, params = in_8_bits
  stored = safetensors.numpy.load_file(directory / "model.safetensors")
  name = "model.layers.0.mlp.down_proj.weight"
  assert stored[name].dtype == np.int8 and stored[name + ".scale"].shape == (128,)
  assert stored["model.norm.weight"].dtype == np.float16
  loaded = hf.load(directory).params
  flat, old = (flatten_dict(x["params"]) for x in (loaded, params))
  for key, x in old.items():
    step = np.abs(x).max(-1, keepdims=True) / 127
    assert (np.abs(flat[key] - x) <= 0.51 * step).all(), key
  want = stored[name].astype(np.float32) * stored[name + ".scale"].astype(np.float32)[:, None]
  found = [x for x in flat.values() if x.shape == want.shape]
  assert any(np.array_equal(x, want) for x in found)
  jax.tree.map(np.testing.assert_array_equal, hf.load(directory, mesh=mesh).params,
               sharding.split(loaded))  # fmt: skip


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (
      lambda t, n: t.pop(n + ".scale"),
      r"the dtype of tensor model\.layers\.0\.mlp\.down_proj\.weight.*got I8\.",
    ),
    (lambda t, n: t.pop(n), "the checkpoint lacks tensor"),
    (lambda t, n: t.update({n + ".scale": t[n + ".scale"][1:]}), ".scale, for which config.json"),
    (lambda t, n: t.update({n: t[n].astype(np.float32)}), ".scale, for which config.json has no"),
  ],
)
def test_a_scale_belongs_to_rows_of_8_bits(in_8_bits, change, words):
  directory, _ = in_8_bits
  tensors = safetensors.numpy.load_file(directory / "model.safetensors")
  change(tensors, "model.layers.0.mlp.down_proj.weight")
  safetensors.numpy.save_file(tensors, directory / "model.safetensors")
  with pytest.raises(ValueError, match=words):
    hf.load(directory)
