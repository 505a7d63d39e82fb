"""Medusa heads on disk: both layouts, the published names, and what is refused."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.base import Features
from specjax.checkpoints import formats
from specjax.checkpoints.heads import LoadedHead, abstract
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.medusa import MedusaConfig
from specjax.heads.medusa import medusa as build
from specjax.models.config import Config
from specjax.models.transformer import target

MODEL = Config(11, 4, layers=1, heads=1, kv_heads=1, head_dim=4, mlp_width=8)
CHOICES = ((0,), (0, 0), (1,), (0, 1))
WEIGHTS = "medusa_lm_head.safetensors"


def random_heads(config: MedusaConfig):
  """Weights that float16 holds exactly, no two tensors alike but for the blocks of a head."""
  shapes = abstract(build(target(MODEL), config), MODEL, None)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape).astype(np.float16), jnp.float32), shapes
  )
  for i in range(1, config.blocks):
    params["params"] |= {f"{x}_{i}": params["params"][f"{x}_0"] for x in ("block", "bias")}
  return params


def save(directory, config: MedusaConfig, params, **more):
  loaded = LoadedHead(build(target(MODEL), config), params, CHOICES, None, config, MODEL)
  formats.save(directory, "medusa", loaded, MODEL, (), base="gsm8k-7m", **more)


@pytest.fixture
def saved(tmp_path):
  """A directory with two own heads of two blocks."""
  config = MedusaConfig(depth=2, blocks=2)
  save(tmp_path, config, random_heads(config))
  return tmp_path


def change_tensors(directory, change) -> None:
  tensors = load_file(directory / WEIGHTS)
  change(tensors)
  save_file(tensors, directory / WEIGHTS)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("blocks", [1, 3])
def test_round_trip(tmp_path, shared, blocks):
  config = MedusaConfig(depth=3, blocks=blocks, shared=shared)
  params = random_heads(config)
  save(tmp_path, config, params)
  head, loaded, choices, hit_rates, *_ = formats.load(tmp_path, MODEL)
  assert head is build(target(MODEL), config)
  assert (choices, hit_rates) == (CHOICES, None)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, loaded, params)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}


def test_names_are_the_published_ones(saved):
  """FasterDecoding's: {head}.{block}.linear.weight and .bias, {head}.{blocks}.weight."""
  shapes = {name: x.shape for name, x in load_file(saved / WEIGHTS).items()}
  expected = {}
  for h in "01":
    for i in "01":
      expected |= {f"{h}.{i}.linear.weight": (4, 4), f"{h}.{i}.linear.bias": (4,)}
    expected[f"{h}.2.weight"] = (11, 4)
  assert shapes == expected
  raw = json.loads((saved / "config.json").read_text())
  assert raw["medusa_num_heads"] == raw["medusa_num_layers"] == 2
  assert raw["base_model_name_or_path"] == "gsm8k-7m"


@pytest.mark.slow
def test_published_tensors_land_in_their_head(tmp_path):
  """z = h + SiLU(W h + b) block by block, then the head's own matrix, from tensors by name."""
  rng = np.random.default_rng(1)
  tensors = {}
  for h in range(2):
    tensors[f"{h}.0.linear.weight"] = rng.normal(size=(4, 4)).astype(np.float32)
    tensors[f"{h}.0.linear.bias"] = rng.normal(size=4).astype(np.float32)
    tensors |= {f"{h}.1.linear.{x}": tensors[f"{h}.0.linear.{x}"] for x in ("weight", "bias")}
    tensors[f"{h}.2.weight"] = rng.normal(size=(11, 4)).astype(np.float32)
  save_file(tensors, tmp_path / WEIGHTS)
  (tmp_path / "config.json").write_text(json.dumps({
    "medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "x", "version": "2",
    "hidden_size": 4, "vocab_size": 11, "medusa_choices": CHOICES,
  }))  # fmt: skip
  head, params, choices, *_ = formats.load(tmp_path, MODEL)
  assert choices == CHOICES
  hidden = rng.normal(size=(3, 4)).astype(np.float32)
  z = jnp.zeros((1, 3), jnp.int32)
  states = drafting.unroll(
    head, params, (), Examples(z, z, z, Features(jnp.asarray(hidden[None])), jnp.array([[0, 1, 2]]))
  )
  logits = [head.read(params, (), state, d)[0] for d, state in enumerate(states, 1)]
  for h in range(2):
    z = hidden
    for i in range(2):
      y = z @ tensors[f"{h}.{i}.linear.weight"].T + tensors[f"{h}.{i}.linear.bias"]
      z = z + y / (1 + np.exp(-y))
    np.testing.assert_allclose(logits[h], z @ tensors[f"{h}.2.weight"].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["0.2.weight", "1.2.weight", "1.0.linear.bias"])
def test_missing_tensor_is_named(saved, name):
  change_tensors(saved, lambda tensors: tensors.pop(name))
  with pytest.raises(ValueError, match=rf"{WEIGHTS} lacks tensor {name}\."):
    formats.load(saved, MODEL)


@pytest.mark.parametrize("name", ["2.0.linear.weight", "0.3.weight", "norm.weight"])
def test_extra_tensor_is_named(saved, name):
  change_tensors(saved, lambda tensors: tensors.update({name: np.zeros((4, 4), np.float16)}))
  with pytest.raises(ValueError, match=f"has no place for tensor {name}"):
    formats.load(saved, MODEL)


def test_misshapen_tensor_is_named(saved):
  change_tensors(saved, lambda t: t.update({"1.2.weight": np.zeros((12, 4), np.float16)}))
  with pytest.raises(ValueError, match=r"1\.2\.weight has shape \(12, 4\), expected \(11, 4\)"):
    formats.load(saved, MODEL)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"width": 8}, r"0\.0\.linear\.weight has shape \(4, 4\), expected \(8, 8\)"),
    ({"vocab_size": 12}, r"0\.2\.weight has shape \(11, 4\), expected \(12, 4\)"),
  ],
)
def test_heads_for_another_target_are_refused(saved, change, words):
  with pytest.raises(ValueError, match=words):
    formats.load(saved, dataclasses.replace(MODEL, **change))


def test_a_published_config_without_a_tree_is_read(saved):
  raw = json.loads((saved / "config.json").read_text())
  del raw["medusa_choices"]
  (saved / "config.json").write_text(json.dumps(raw))
  assert formats.load(saved, MODEL).choices == ()


@pytest.mark.parametrize(
  ("key", "words"),
  [
    ("medusa_num_heads", r"config\.json is of no known format"),
    ("medusa_num_layers", "lacks medusa_num_layers: these are no Medusa heads"),
  ],
)
def test_missing_key_is_named(saved, key, words):
  raw = json.loads((saved / "config.json").read_text())
  del raw[key]
  (saved / "config.json").write_text(json.dumps(raw))
  with pytest.raises(ValueError, match=words):
    formats.load(saved, MODEL)


def test_broken_files_are_named(saved):
  (saved / WEIGHTS).write_bytes((saved / WEIGHTS).read_bytes()[:100])
  with pytest.raises(ValueError, match=f"{WEIGHTS} is truncated"):
    formats.load(saved, MODEL)
  (saved / WEIGHTS).unlink()
  with pytest.raises(ValueError, match=f"has no {WEIGHTS}"):
    formats.load(saved, MODEL)
  (saved / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json is not JSON"):
    formats.load(saved, MODEL)
  (saved / "config.json").unlink()
  with pytest.raises(ValueError, match=r"has no config\.json"):
    formats.load(saved, MODEL)


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path):
  config = MedusaConfig(depth=1)
  params = jax.tree.map(lambda x: x * 1e6, random_heads(config))
  with pytest.raises(ValueError, match=r"tensor 0\.0\.linear\.weight is not finite in .*float16"):
    save(tmp_path, config, params)
  save(tmp_path, config, params, dtype=jnp.bfloat16)
  loaded = formats.load(tmp_path, MODEL).params
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2), loaded, params)


def test_a_file_of_torch_is_what_the_published_program_loads(tmp_path):
  torch = pytest.importorskip("torch")
  config = MedusaConfig(depth=2)
  save(tmp_path / "plain", config, random_heads(config))
  save(tmp_path / "torch", config, random_heads(config), torch=True)
  state = torch.load(tmp_path / "torch" / "medusa_lm_head.pt", weights_only=True)
  plain = load_file(tmp_path / "plain" / WEIGHTS)
  assert {name: x.numpy().tobytes() for name, x in state.items()} == {
    name: x.tobytes() for name, x in plain.items()
  }
  assert not (tmp_path / "torch" / WEIGHTS).exists()
  pair = (formats.load(tmp_path / name, MODEL).params for name in ("plain", "torch"))
  jax.tree.map(np.testing.assert_array_equal, *pair)


def test_without_torch_its_file_is_refused_before_anything_is_written(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(ValueError, match=r"medusa_lm_head.pt needs torch, which is not installed"):
    save(tmp_path / "new", MedusaConfig(depth=2), random_heads(MedusaConfig(depth=2)), torch=True)
  assert not (tmp_path / "new").exists()


def test_other_formats_have_no_file_of_torch(tmp_path):
  config = MedusaConfig(depth=2)
  loaded = LoadedHead(
    build(target(MODEL), config), random_heads(config), CHOICES, None, config, MODEL
  )
  with pytest.raises(
    ValueError,
    match=(
      r"`torch` must be False for the format specjax.*got True: only medusa and hydra are "
      "written as torch files"
    ),
  ):
    formats.save(tmp_path, "specjax", loaded, MODEL, (), base="gsm8k-7m", torch=True)
