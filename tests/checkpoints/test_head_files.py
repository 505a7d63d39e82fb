"""Draft heads of any kind on disk: what is kept, which format is which, and what is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sentences import says

from specjax.checkpoints import formats, heads, hf
from specjax.cli.main import main
from specjax.heads import HEADS
from specjax.heads.medusa import MedusaConfig
from specjax.models.config import Config
from specjax.models.transformer import init, target

MODEL = Config(
  vocab_size=32, width=16, layers=4, heads=4, kv_heads=2, head_dim=8, mlp_width=24, max_length=128
)
WEIGHTS = "head.safetensors"
CHOICES = ((0,), (1,), (0, 0))
RATES = np.array([[0.5, 0.25, 0.125], [0.4375, 0.0625, 0.0]])
SOME = np.array([1, 2, 5, 8, 31], np.int32)
SMALL = MedusaConfig(depth=2, blocks=3)


def random_params(name: str, config, vocabulary=None):
  """Weights that float16 holds exactly, no two tensors alike."""
  rng = np.random.default_rng(0)
  shapes = heads.abstract(
    HEADS[name][0](target(MODEL), config), MODEL, None if vocabulary is None else len(vocabulary)
  )
  params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float16), shapes)
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  return params if vocabulary is None else params | {"vocabulary": jnp.asarray(vocabulary)}


def save(directory, name="medusa", config=SMALL, vocabulary=None):
  params = random_params(name, config, vocabulary)
  heads.save(directory, name, config, params, CHOICES, RATES, base="gsm8k-7m")
  return params


@pytest.mark.full(but=["*-all tokens", "eagle3-reduced", "medusa-reduced"])
@pytest.mark.parametrize("vocabulary", [None, SOME], ids=["all tokens", "reduced"])
@pytest.mark.parametrize("name", HEADS)
def test_round_trip(tmp_path, name, vocabulary):
  build, config = HEADS[name]
  params = save(tmp_path, name, config(), vocabulary)
  loaded = heads.load(tmp_path, MODEL)
  made = build(target(MODEL), config())
  assert (loaded.head.name, loaded.head.depth, loaded.head.hidden_layers) == (
    made.name, made.depth, made.hidden_layers
  )  # fmt: skip
  assert loaded.choices == CHOICES
  np.testing.assert_array_equal(loaded.hit_rates, RATES)
  assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
  assert jax.tree.map(lambda x: x.dtype, loaded.params) == jax.tree.map(lambda x: x.dtype, params)
  half = heads.load(tmp_path, MODEL, jnp.bfloat16).params
  assert {x.dtype for x in jax.tree.leaves(half["params"])} == {jnp.dtype("bfloat16")}
  assert "vocabulary" not in half or half["vocabulary"].dtype == jnp.int32


def test_what_is_written(tmp_path):
  """float16, names that are paths, and a config that another program can read."""
  save(tmp_path, vocabulary=SOME)
  assert heads.load(tmp_path, MODEL).head is HEADS["medusa"][0](target(MODEL), SMALL)
  tensors = load_file(tmp_path / WEIGHTS)
  blocks = {f"params/{kind}_{i}" for kind in ("block", "bias") for i in range(3)}
  assert tensors.keys() == blocks | {"params/lm_head", "vocabulary"}
  assert {str(x.dtype) for x in tensors.values()} == {"float16", "uint16"}
  assert json.loads((tmp_path / "config.json").read_text()) == {
    "head": "medusa", "config": {"depth": 2, "blocks": 3, "shared": False}, "draft_vocab": 5,
    "base": "gsm8k-7m", "choices": [[0], [1], [0, 0]], "hit_rates": RATES.tolist(),
  }  # fmt: skip


def test_large_ids_keep_their_bits(tmp_path):
  save(tmp_path, vocabulary=SOME + 2**16)
  ids = load_file(tmp_path / WEIGHTS)["vocabulary"]
  assert ids.dtype == np.int32 and (ids == SOME + 2**16).all()


def sentence(call, *arguments) -> str:
  """The one sentence that a refusal is."""
  with pytest.raises(ValueError) as refusal:
    call(*arguments)
  words = str(refusal.value)
  assert words.endswith(".") and "\n" not in words
  return words


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (lambda t: t.pop("params/bias_1"), "lacks tensor params/bias_1"),
    (lambda t: t.pop("vocabulary"), "lacks tensor vocabulary"),
    (lambda t: t.update(norm=np.zeros(3)), "has no place for tensor norm"),
    (
      lambda t: t.update({"params/bias_0": np.zeros((2, 8), np.float16)}),
      "params/bias_0 has shape (2, 8), expected (2, 16)",
    ),
    (lambda t: t.update(vocabulary=SOME[:4]), "vocabulary has shape (4,), expected (5,)"),
    (lambda t: t.update(vocabulary=SOME + 1), "vocabulary has ids beyond 0 to 31"),
    (lambda t: t.update(vocabulary=SOME - 2), "vocabulary has ids beyond 0 to 31"),
  ],
)
def test_damaged_tensors_are_named(tmp_path, change, words):
  save(tmp_path, vocabulary=SOME)
  tensors = load_file(tmp_path / WEIGHTS)
  change(tensors)
  save_file(tensors, tmp_path / WEIGHTS)
  assert says(sentence(heads.load, tmp_path, MODEL), words)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    *((lambda raw, key=key: raw.pop(key), f"config.json lacks {key}: this is no draft head")
      for key in ("head", "config", "draft_vocab", "choices", "hit_rates")),
    (lambda raw: raw.update(head="oracle"),
     "`head` must be one of medusa, .. got 'oracle'."),
    (lambda raw: raw["config"].update(layers=3),
     "config: a key must be one of depth, blocks, shared, got 'layers'."),
    (lambda raw: raw["config"].update(depth=3), ", expected (3, 16"),
    (lambda raw: raw["config"].update(shared=True), "has no place for tensor params/lm_head"),
    (lambda raw: raw.update(draft_vocab=None), "has no place for tensor vocabulary"),
  ],
)  # fmt: skip
def test_a_config_that_does_not_fit_is_named(tmp_path, change, words):
  save(tmp_path, vocabulary=SOME)
  raw = json.loads((tmp_path / "config.json").read_text())
  change(raw)
  (tmp_path / "config.json").write_text(json.dumps(raw))
  assert says(sentence(heads.load, tmp_path, MODEL), words)


def test_broken_files_are_named(tmp_path):
  save(tmp_path)
  weights, config = tmp_path / WEIGHTS, tmp_path / "config.json"
  weights.write_bytes(weights.read_bytes()[:-7])
  assert f"{WEIGHTS} is truncated" in sentence(heads.load, tmp_path, MODEL)
  weights.unlink()
  assert f"has no {WEIGHTS}" in sentence(heads.load, tmp_path, MODEL)
  for text, words in (("{", "is not JSON"), ("[1]", "is no JSON object")):
    config.write_text(text)
    assert f"config.json {words}" in sentence(heads.load, tmp_path, MODEL)
  config.unlink()
  assert "has no config.json: this is no draft head" in sentence(heads.load, tmp_path, MODEL)


def test_the_format_is_told_by_its_config(tmp_path):
  ours = save(tmp_path / "ours")
  loaded = heads.load(tmp_path / "ours", MODEL)
  own = ours["params"]
  first = {f"{x}_{i}": own[f"{x}_0"] for x in ("block", "bias") for i in range(SMALL.blocks)}
  alike = {"params": own | first}  # the published format has the blocks of a head as one
  formats.save(tmp_path / "published", "medusa", loaded._replace(params=alike), MODEL, (),
               base="x")  # fmt: skip
  for name, params in (("ours", ours), ("published", alike)):
    loaded = formats.load(tmp_path / name, MODEL)
    assert loaded.head is HEADS["medusa"][0](target(MODEL), SMALL) and loaded.choices == CHOICES
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "config.json").write_text('{"model_type": "llama"}')
  words = sentence(formats.load, tmp_path / "other", MODEL)
  assert f"is of no known format: {', '.join(formats.FORMATS)} are" in words


@pytest.mark.parametrize("vocabulary", [None, SOME], ids=["all tokens", "reduced"])
def test_weights_to_go_on_from_are_of_the_same_shape(tmp_path, vocabulary):
  params = save(tmp_path, vocabulary=vocabulary)
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16 if x.ndim > 1 else x.dtype), params)
  for like in (params, narrow):  # what is trained has float32, whatever the target has
    found = heads.weights_like(tmp_path, MODEL, like)
    jax.tree.map(np.testing.assert_array_equal, found, params)
  others = [
    random_params("medusa", MedusaConfig(3, blocks=3), vocabulary),
    random_params("medusa", MedusaConfig(2, blocks=3, shared=True), vocabulary),
    random_params("medusa", SMALL, None if vocabulary is not None else SOME),
  ]
  if vocabulary is not None:
    others.append(params | {"vocabulary": params["vocabulary"] - 1})
  for like in others:
    words = sentence(heads.weights_like, tmp_path, MODEL, like)
    assert "`init` must hold a head of this shape and vocabulary, got one of another in" in words


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path):
  params = jax.tree.map(lambda x: x * 1e6, random_params("medusa", SMALL))
  arguments = (tmp_path, "medusa", SMALL, params, CHOICES, RATES)
  with pytest.raises(ValueError, match=r"tensor params/\w+ is not finite in dtype float16\."):
    heads.save(*arguments, base="x")
  heads.save(*arguments, base="x", dtype=jnp.bfloat16)
  loaded = heads.load(tmp_path, MODEL).params
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2), loaded, params)


LARGE = dataclasses.replace(MODEL, vocab_size=1024)  # its vocabulary matrices are worth 8 bits


def save_in_8_bits(directory):
  rng = np.random.default_rng(0)
  shapes = heads.abstract(HEADS["medusa"][0](target(LARGE), SMALL), LARGE, None)
  params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)
  heads.save(directory, "medusa", SMALL, params, CHOICES, RATES, base="x", dtype=jnp.int8)
  return params["params"]


def test_round_trip_in_8_bits(tmp_path):
  params = save_in_8_bits(tmp_path)
  loaded = heads.load(tmp_path, LARGE).params["params"]
  matrix, back = np.asarray(params.pop("lm_head")), np.asarray(loaded.pop("lm_head"))
  half_step = np.abs(matrix).max(-1, keepdims=True) / 127 / 2
  error = np.abs(matrix - back) / half_step
  assert 0.99 < error.max() < 1 + 2**-11
  assert back.dtype == np.float32
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2**-11), params, loaded)
  tensors = load_file(tmp_path / WEIGHTS)
  assert {name: x.dtype for name, x in tensors.items() if "lm_head" in name} == {
    "params/lm_head": np.int8, "params/lm_head.scale": np.float16,
  }  # fmt: skip
  assert {x.dtype for name, x in tensors.items() if "lm_head" not in name} == {np.dtype("f2")}
  assert (tmp_path / WEIGHTS).stat().st_size < 1.5 * matrix.size


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (lambda t: t.update({"params/lm_head.scale": np.ones(3, "f4")}),
     "shape of tensor params/lm_head.scale must be that of a .. got (3,)."),
    (lambda t: t.pop("params/lm_head"),
     "shape of tensor params/lm_head.scale must be that of a .. got (2, 1024)."),
    (lambda t: t.pop("params/lm_head.scale"),
     "dtype of tensor params/lm_head must be float32, got 'int8'."),
  ],
)  # fmt: skip
def test_a_scale_belongs_to_a_tensor(tmp_path, change, words):
  save_in_8_bits(tmp_path)
  tensors = load_file(tmp_path / WEIGHTS)
  change(tensors)
  save_file(tensors, tmp_path / WEIGHTS)
  assert says(sentence(heads.load, tmp_path, LARGE), words)


@pytest.mark.slow
def test_convert_writes_8_bits(tmp_path):
  hf.save(tmp_path / "model", LARGE, init(LARGE, jax.random.key(0)))
  save_in_8_bits(tmp_path / "head")
  options = ["--target", tmp_path / "model", "--weights", "int8", "--out", tmp_path / "new"]
  words = ["convert", "--format", "head", "--model", tmp_path / "head", *options]
  assert main([str(x) for x in words]) == 0
  old, new = (load_file(tmp_path / x / WEIGHTS) for x in ("head", "new"))
  assert {k: x.dtype for k, x in new.items()} == {k: x.dtype for k, x in old.items()}
  np.testing.assert_array_equal(new["params/lm_head"], old["params/lm_head"])
