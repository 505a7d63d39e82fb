"""Keys of GGUF files: old and short spellings as llama.cpp reads them, and those nobody reads."""

import json
import math
import pathlib
import shutil

import gguf as package
import numpy as np
import pytest
from gguf_writer import read_directory, write

from specjax.checkpoints import gguf, harmless, hf

LINEAR = pathlib.Path(__file__).parents[1] / "fixtures" / "hf" / "linear"
FACTOR, TYPE = "rope.scaling.factor", "rope.scaling.type"


@pytest.fixture
def loaded(tmp_path):
  """The config of a file with other metadata, and that of a directory with another scaling."""
  known, tensors = read_directory(LINEAR, "llama")
  known = {k: v for k, v in known.items() if not k.startswith("rope.scaling")}

  def of_file(metadata, more=None):
    file = write(tmp_path / "m.gguf", "llama", known | metadata, tensors | (more or {}))
    return gguf.load(file).config

  def of_directory(scaling):
    directory = shutil.copytree(LINEAR, tmp_path / "m")
    raw = json.loads((directory / "config.json").read_text())
    raw |= {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": 1e4}
    (directory / "config.json").write_text(json.dumps(raw))
    return hf.load(directory).config

  return of_file, of_directory


YARN = {TYPE: "yarn", FACTOR: 4.0, "rope.scaling.original_context_length": 16}
YARN_JSON = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
  ("metadata", "scaling"),
  [
    ({FACTOR: 8.0}, {"type": "linear", "factor": 8.0}),
    ({"rope.scale_linear": 8.0}, {"type": "linear", "factor": 8.0}),
    ({TYPE: "linear", "rope.scale_linear": 8.0}, {"type": "linear", "factor": 8.0}),
    ({FACTOR: 4.0, "rope.scale_linear": 8.0}, {"type": "linear", "factor": 4.0}),
    ({FACTOR: 8.0, "rope.scaling.finetuned": True}, {"type": "linear", "factor": 8.0}),
    ({TYPE: "none", FACTOR: 8.0}, None),
    ({FACTOR: 0.0}, None),
    ({FACTOR: 1.0}, None),
    ({TYPE: "linear", "rope.scale_linear": 0.0}, None),
    ({"rope.scaling.original_context_length": 16}, None),
    ({"rope.scaling.attn_factor": 1.0}, None),
    (YARN, YARN_JSON),
    (YARN | {"rope.scaling.attn_factor": 0.5},
     YARN_JSON | {"attention_factor": 0.5 * (0.1 * math.log(4) + 1)}),
    (YARN | {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_ext_factor": 1.0}, YARN_JSON),
  ],
)  # fmt: skip
def test_the_scaling_of_rotary_frequencies(metadata, scaling, loaded):
  of_file, of_directory = loaded
  got, want = of_file(metadata), of_directory(scaling)
  if got.rope_scaling is not None:
    assert got.rope_scaling.attention == pytest.approx(want.rope_scaling.attention)
  assert str(got)[:600].split("attention=")[0] == str(want)[:600].split("attention=")[0]


ONES = {"rope_freqs.weight": np.full(4, 8, np.float32)}


@pytest.mark.parametrize(
  ("metadata", "tensors", "words"),
  [
    (
      {FACTOR: 8.0},
      ONES,
      r"`llama\.rope\.scaling\.type` must be none beside the tensor rope_freqs\.weight, got "
      r"'linear'\.",
    ),
    (
      {"rope.scaling.attn_factor": 0.5},
      None,
      r"`llama\.rope\.scaling\.attn_factor` must be 1 but for yarn, got 0\.5\.",
    ),
    (
      YARN | {"rope.scaling.yarn_beta_fast": 16.0},
      None,
      r"`llama\.rope\.scaling\.yarn_beta_fast` must be 32, for nothing else is read, got "
      r"16\.0\.",
    ),
    (
      {"rope.scaling.alpha": 2.0},
      None,
      r"`llama\.rope\.scaling\.alpha` must be left out, as it is not.*got 2\.0\.",
    ),
    (
      {"logit_scale": 0.5},
      None,
      r"`llama\.logit_scale` must be 0 or 1, for nothing else is read, got 0\.5\.",
    ),
    (
      {"attention.scale": 0.5},
      None,
      r"`llama\.attention\.scale` must be 0, for nothing else is read, got 0\.5\.",
    ),
    (
      {"final_logit_softcapping": 30.0},
      None,
      r"`llama\.final_logit_softcapping` must be 0, for nothing else is read, got 30\.0\.",
    ),
    (
      {"a_key_of_tomorrow": 1},
      None,
      r"`llama\.a_key_of_tomorrow` must be left out, as it is not.*got 1\.",
    ),
    (
      {"split.count": 3},
      None,
      r"`name` must be that of the first part, \*-00001-of-00003\.gguf, got 'm\.gguf'\.",
    ),
    (
      {"diffusion.of_tomorrow": 1},
      None,
      r"`diffusion\.of_tomorrow` must be left out, as it is not read.*got 1\.",
    ),
    (
      {"tokenizer.ggml.add_eos_token": True},
      None,
      r"`tokenizer\.ggml\.add_eos_token` must be false, for nothing else is read, got True\.",
    ),
    (
      {"tokenizer.ggml.remove_extra_whitespaces": True},
      None,
      r"`tokenizer\.ggml\.remove_extra_whitespaces` must be false, for nothing else is read, "
      r"got True\.",
    ),
    ({"tokenizer.ggml.normalizer.lowercase": True}, None, "normalizer.lowercase"),
  ],
)
def test_a_key_that_could_change_the_output_is_named(metadata, tensors, words, loaded):
  with pytest.raises(ValueError, match=words):
    loaded[0](metadata, tensors)


def test_a_window_that_the_architecture_does_not_read_is_named(tmp_path):
  qwen = LINEAR.parent / "qwen2"
  known, tensors = read_directory(qwen, "qwen2")
  file = write(tmp_path / "m.gguf", "qwen2", known | {"attention.sliding_window": 9}, tensors)
  with pytest.raises(
    ValueError, match=(r"`qwen2\.attention\.sliding_window` must be left out, as it is.*got 9\.")
  ):
    gguf.load(file)


def test_keys_about_a_file_are_harmless():
  """All of the installed package's keys that describe a file, with any values."""
  about = [v for k, v in vars(package.Keys.General).items() if k.isupper()]
  about = [key.replace("{id}", "0") for key in about if key != "general.type"]
  about += ["quantize.imatrix.file", "tokenizer.chat_template.tool_use", "split.tensors.count"]
  harmless.known_keys(dict.fromkeys(about, 7), "m.gguf", (), harmless.GGUF)
  with pytest.raises(
    ValueError,
    match=("`general\\.type` must be \"model\", for nothing else is read, got 'adapter'\\."),
  ):
    harmless.known_keys({"general.type": "adapter"}, "m.gguf", (), harmless.GGUF)
