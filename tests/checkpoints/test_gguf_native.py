"""GGUF files whose matrices stay in their own bits, against the package gguf and float weights."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as Kind
from gguf_writer import read_directory, write
from test_gguf import WORDS

from specjax.checkpoints import gguf, gguf_groups
from specjax.kernels import skinny
from specjax.models import groups
from specjax.models.groups import Groups
from specjax.models.transformer import target
from specjax.models.weights import dense
from specjax.names.build.drafters import load_small
from specjax.names.grammar import Part
from specjax.names.load import load
from specjax.train.lm import begun
from specjax.train.recipe.answers import teacher

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "hf"
# Where in a block the halves of 16 bits lie; all other bytes may have any value.
HALVES = {
  Kind.Q4_0: (0,), Kind.Q4_1: (0, 2), Kind.Q5_0: (0,), Kind.Q5_1: (0, 2), Kind.Q8_0: (0,),
  Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,),
}  # fmt: skip


@pytest.mark.parametrize("kind", HALVES)
def test_values_are_those_of_the_package(kind):
  count, size = GGML_QUANT_SIZES[kind]
  rng = np.random.default_rng(kind)
  blocks = rng.integers(0, 256, (24, 768 // count, size), np.uint8)
  for at in HALVES[kind]:
    halves = rng.normal(size=blocks.shape[:2]).astype(np.float16)
    blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
  data = blocks.reshape(24, -1)
  held = gguf_groups.groups(data, kind, jnp.float32)
  np.testing.assert_array_equal(jax.jit(dense)(held), quants.dequantize(data, kind))
  assert held.shape == (24, 768)
  assert sum(x.nbytes for x in jax.tree.leaves(held)) <= 1.03 * data.nbytes


def floats(name, w):
  return Kind.F16 if w.ndim > 1 else Kind.F32


def first_type(name, w):
  return Kind.F32 if w.ndim == 1 else Kind.BF16 if w.shape[-1] % 32 else Kind.Q8_0


def other_value_type(name, w):
  """Parts of qkv in two kinds."""
  return Kind.Q5_1 if w.ndim == 2 and w.shape[-1] % 32 == 0 and "attn_v" in name else (
    first_type(name, w)
  )  # fmt: skip


@pytest.mark.parametrize(
  ("name", "arch", "kinds"),
  [("llama1", "llama", first_type), ("qwen2", "qwen2", other_value_type)],
)
def test_the_model_is_that_of_the_dequantised_file(name, arch, kinds, tmp_path):
  metadata, tensors = read_directory(FIXTURES / name, arch)
  file = write(tmp_path / "m.gguf", arch, metadata, tensors, kinds)
  wide, held = gguf.load(file), gguf.load(file, weights="native")
  leaves = jax.tree.leaves(held.params, is_leaf=lambda x: isinstance(x, Groups))
  assert any(isinstance(x, Groups) for x in leaves)
  tokens = jnp.arange(8, dtype=jnp.int32)[None]
  prefill = jax.jit(lambda params: target(wide.config).prefill(params, tokens, jnp.full(1, 8), 16))
  for a, b in zip(*(jax.tree.leaves(prefill(x.params)) for x in (wide, held)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def second_kind(name, w):
  """Floats that share a matrix with few bits."""
  return Kind.BF16 if "attn_v" in name else first_type(name, w)


@pytest.mark.parametrize(
  ("kinds", "quick", "options", "weights"),
  [
    (first_type, True, {}, "native"),
    (first_type, True, {"activations": "int8"}, "native"),
    (first_type, True, {"weights": "float"}, "float"),
    (first_type, True, {"dtype": jnp.bfloat16}, "float"),
    (first_type, False, {}, "float"),
    (second_kind, True, {}, "float"),
    (floats, True, {}, "float"),
  ],
)
def test_few_bits_are_kept_where_their_products_are_quick(
  kinds, quick, options, weights, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(skinny, "available", lambda: quick)
  metadata, tensors = read_directory(FIXTURES / "llama1", "llama")
  file = str(write(tmp_path / "m.gguf", "llama", metadata, tensors, kinds))
  model = load(file, **options)
  has_scales = any(x.dtype == jnp.float16 for x in jax.tree.leaves(model.params))
  assert (model.weights, has_scales) == (weights, weights == "native")
  said = (
    f"{file}: matrices keep the few bits of their file, which is quicker here (weights native; "
    "weights float widens them).\n"
  )
  assert capsys.readouterr().err == (said if weights == "native" else "")


def test_training_has_floats_of_a_file_of_few_bits(tmp_path, monkeypatch):
  monkeypatch.setattr(skinny, "available", lambda: True)
  metadata, tensors = read_directory(FIXTURES / "qwen3", "qwen3")
  file = write(tmp_path / "m.gguf", "qwen3", metadata | WORDS, tensors, first_type)
  assert load(str(file)).weights == "native"
  for model in (teacher(str(file), causal=True), begun(str(file), 8)):
    assert model.weights == "float" and not groups.has_groups(model.params)


def test_a_draft_model_of_floats_goes_with_a_file_of_few_bits(tmp_path):
  target = dataclasses.replace(load("gsm8k-7m"), name="m.gguf", weights="native")
  assert load_small(target, Part("draft_model", text="gsm8k-7m")).weights == "float"
  metadata, tensors = read_directory(FIXTURES / "llama1", "llama")
  file = str(write(tmp_path / "m.gguf", "llama", metadata, tensors, first_type))
  assert load_small(target, Part("draft_model", text=file), bridged=True).weights == "native"


@pytest.mark.parametrize(
  ("kinds", "quick", "alike", "stored"),
  [
    (first_type, True, False, ("native", "int8")),
    (first_type, True, True, ("float", "float")),
    (first_type, False, False, ("float", "float")),
    (floats, True, False, ("float", "float")),
  ],
)
def test_a_draft_model_beside_floats_keeps_its_few_bits(
  kinds, quick, alike, stored, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(skinny, "available", lambda: quick)
  metadata, tensors = read_directory(FIXTURES / "llama1", "llama")
  file = str(write(tmp_path / "m.gguf", "llama", metadata, tensors, kinds))
  part = Part("draft_model", text=file)
  small = load_small(load("gsm8k-7m"), part, bridged=True, alike=alike)
  assert (small.weights, small.activations) == stored
  said = f"{file}: drafts in the few bits of its file"
  error = capsys.readouterr().err
  assert error.startswith(said) and error.count("\n") == 1 if stored[1] == "int8" else error == ""


def test_activations_of_8_bits_need_a_file_of_few_bits(tmp_path):
  metadata, tensors = read_directory(FIXTURES / "llama1", "llama")
  options = dict(weights="native", activations="int8")
  held = load(str(write(tmp_path / "m.gguf", "llama", metadata, tensors, first_type)), **options)
  assert held.label.endswith("m.gguf, native weights, int8 activations")
  file = str(write(tmp_path / "f.gguf", "llama", metadata, tensors, floats))
  with pytest.raises(ValueError, match=r"^`activations` must be float for .*f\.gguf, "):
    load(file, **options)


@pytest.mark.parametrize("beside", [Kind.Q5_1, Kind.BF16])
def test_what_would_be_widened_is_refused(beside, tmp_path, monkeypatch):
  """A kind that is not held, and floats that share a matrix with few bits."""
  monkeypatch.delitem(gguf_groups._KINDS, Kind.Q5_1)
  metadata, tensors = read_directory(FIXTURES / "llama1", "llama")

  def kind_of(name, w):
    return beside if "attn_v" in name else first_type(name, w)

  file = write(tmp_path / "m.gguf", "llama", metadata, tensors, kind_of)
  words = rf"type of tensor blk.0.attn_v.weight must be with native weights Q4.*'{beside.name}'"
  with pytest.raises(ValueError, match=words):
    gguf.load(file, weights="native")
