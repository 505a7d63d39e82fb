"""MTP layers of the families that publish theirs: transformers' modules, both ways, and drafts.

See `make_mtp_fixture` for what transformers was asked; `test_mtp_layers` is of MiMo's.
"""

import functools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from few_bits_writer import FORMATS
from make_family_fixtures import IDS, drawn
from make_mtp_fixture import AT, DEPTHS, OUT, PLACES, E, states
from safetensors.numpy import load_file, save_file
from test_families import directory_of
from test_published_heads import same, sentence

import specjax
from specjax.base import Features
from specjax.checkpoints import formats, hf, mtp
from specjax.checkpoints.hf_layout import Stack
from specjax.heads import drafting
from specjax.heads.base import Examples
from specjax.heads.mtp import MTPConfig

EXPECTED = np.load(OUT / "expected.npz")
FAMILY = {"qwen3_5_moe": "qwen3_5_moe_text"}  # whose fixture has a tower for pictures


@functools.cache
def model(name: str):
  with tempfile.TemporaryDirectory() as directory:
    return hf.load(directory_of(name, pathlib.Path(directory)))


def tensors(name: str) -> dict[str, np.ndarray]:
  """Those of the layer; experts are whole tensors where the family is published so."""
  found = {}
  for parts in mtp.layout(FAMILY.get(name, name), model(name).config).values():
    own = {part.name: drawn(part.name, part.shape, name) for part in parts}
    if isinstance(parts, Stack) and name == "qwen3_5_moe":
      base = next(iter(own)).rsplit(".", 3)[0]
      kind = "down_proj" if len(own) == parts.height else "gate_up_proj"
      rows = np.concatenate(list(own.values()))
      own = {f"{base}.{kind}": rows.reshape(parts.height, -1, rows.shape[1])}
    found |= own
  return found


def write(directory: pathlib.Path, name: str, own=None, **changes) -> pathlib.Path:
  """The whole checkpoint, whose layer has the copies that files of its family have."""
  directory.mkdir(exist_ok=True)
  directory_of(name, directory, **changes)
  file = directory / "model.safetensors"
  own = tensors(name) if own is None else own
  place = mtp.PLACES[FAMILY.get(name, name)].of(model(name).config)
  copies = dict.fromkeys(place.copies, np.zeros((model(name).config.vocab_size, E), np.float32))
  save_file(load_file(file) | own | copies, file)
  return directory


@functools.cache
def loaded(name: str):
  with tempfile.TemporaryDirectory() as directory:
    written = write(pathlib.Path(directory), name)
    assert hf.load(written).config == model(name).config  # which does not mind the layer
    return formats.load(written, model(name).config)


@pytest.mark.parametrize("name", PLACES)
def test_the_layer_says_what_transformers_modules_say(name):
  found = loaded(name)
  assert found.config == MTPConfig() and found.head.hidden_layers == ()
  T = IDS.shape[1]
  tokens, position = IDS[:1], np.arange(T, dtype=np.int32)[None]
  state = np.zeros((1, T, E), np.float32)
  state[0, : AT + 1] = states()

  @jax.jit
  def run(params, target_params):
    at = jnp.asarray([[AT]])
    examples = Examples(tokens, position, np.zeros((1, T), np.int32), Features(state), at)
    read = drafting.unroll(found.head, params, target_params, examples)[:DEPTHS]
    return [found.head.read(params, target_params, x, d)[0, 0] for d, x in enumerate(read, 1)]

  got = run(found.params, model(name).params)
  np.testing.assert_allclose(np.stack(got), EXPECTED[name], atol=2e-5)
  assert EXPECTED[name].std(1).min() > 0.1


@pytest.mark.parametrize("name", PLACES)
def test_loaded_then_saved_is_the_layer(name, tmp_path):
  found, config = loaded(name), model(name).config
  arguments = tmp_path, "mtp", found, config, model(name).params
  formats.save(*arguments, base="x", dtype=jnp.float32)
  after, before = load_file(tmp_path / "model.safetensors"), tensors(name)
  if name == "qwen3_5_moe":  # which are written one expert at a time
    before = {k: x for k, x in before.items() if ".experts." not in k}
    assert len([k for k in after if ".experts." in k]) == 3 * config.experts.count
  else:
    assert after.keys() == before.keys()
  for key, x in before.items():
    np.testing.assert_allclose(after[key], x, atol=1e-7, err_msg=key)
  again = formats.load(tmp_path, config)
  same(again.params, found.params)
  assert (again.config, again.network) == (found.config, found.network)


# The key of config.json, and what begins the names of the first and of the second layer.
SEVERAL = {
  "deepseek_v3": ("num_nextn_predict_layers", "model.layers.2.", "model.layers.3."),
  "qwen3_5_text": ("mtp_num_hidden_layers", "mtp.layers.0.", "mtp.layers.1."),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_layers_each_has_its_own_tensors(name, tmp_path):
  """Those of Qwen's share what is beside the layer."""
  (key, first, second), one = SEVERAL[name], tensors(name)
  names = {k: k.replace(first, second) for k in one if k.startswith(first)}
  deeper = {to: drawn(to, one[k].shape, name) for k, to in names.items()}
  write(tmp_path / "two", name, one | deeper, **{key: 2})
  write(tmp_path / "second", name, one | {k: deeper[to] for k, to in names.items()})
  assert hf.load(tmp_path / "two").config == model(name).config
  found, alone = (formats.load(tmp_path / x, model(name).config) for x in ("two", "second"))
  assert found.config == MTPConfig(modules=2, shares=len(names) < len(one))
  own = found.params["params"]
  shared = {k: x for k, x in own.items() if k != "depth_2"}
  same({"params": shared}, loaded(name).params)
  same({"params": shared | own["depth_2"]}, alone.params)
  arguments = tmp_path / "b", "mtp", found, model(name).config, model(name).params
  formats.save(*arguments, base="x", dtype=jnp.float32)
  after = load_file(tmp_path / "b" / "model.safetensors")
  assert after.keys() == (one | deeper).keys()
  again = formats.load(tmp_path / "b", model(name).config)
  same(again.params, found.params)
  assert again.config == found.config


def test_a_layer_in_fp8_is_widened(tmp_path):
  """As DeepSeek-V3 is published: norms, the router and copies of the target's stay floats."""
  name, rng, packed, values = "deepseek_v3", np.random.default_rng(0), {}, {}
  for key, x in tensors(name).items():
    packed[key] = values[key] = x
    if x.ndim == 2 and not key.endswith("mlp.gate.weight"):
      del packed[key]
      own, values[key] = FORMATS["fp8, blocks"].pack(rng, key.removesuffix(".weight"), *x.shape)
      packed |= own
  write(tmp_path / "a", name, {k: np.float32(x) for k, x in values.items()})
  write(tmp_path / "b", name, packed, quantization_config=FORMATS["fp8, blocks"].config)
  want, got = (formats.load(tmp_path / x, model(name).config) for x in "ab")
  same(got.params, want.params)
  assert got.config == want.config
  assert hf.load(tmp_path / "b").config == model(name).config


@pytest.mark.slow
@pytest.mark.full(but=["tree-qwen3_5_text", "chain-deepseek_v3"])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("tree", ["", "/dynamic-8,depth=3,beam=3"], ids=["chain", "tree"])
def test_drafts_change_no_token(tree, name, tmp_path):
  target = specjax.load(str(write(tmp_path / "a", name)))
  prompts = [IDS[0, :9].tolist(), IDS[1, :4].tolist()]
  plain, drafted = (
    specjax.Decoder(target, x, batch=2)(prompts, 20)
    for x in ("none", f"mtp[{tmp_path / 'a'}]{tree}")
  )
  assert [r.tokens for r in drafted] == [r.tokens for r in plain]


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_5_text"])
def test_every_tensor_counts(name, tmp_path):
  own = tensors(name)
  for key in own:
    write(tmp_path, name, {k: x for k, x in own.items() if k != key})
    assert f"lacks tensor {key}." in sentence(formats.load, tmp_path, model(name).config)


@pytest.mark.parametrize(
  ("name", "change", "words"),
  [
    ("deepseek_v3", {"num_nextn_predict_layers": 0}, "`num_nextn_predict_layers` must be"),
    ("glm4_moe", {"num_nextn_predict_layers": 2}, "lacks tensor model.layers.3."),
    ("qwen3_5_text", {"mtp_num_hidden_layers": 2}, "lacks tensor mtp.layers.1."),
    ("qwen3_5_text", {"rms_norm_eps": 1e-4}, "`norm_epsilon` must be the target's, 1e-06, got"),
  ],
)
def test_a_layer_for_another_target_is_refused(name, change, words, tmp_path):
  write(tmp_path, name)
  raw = json.loads((tmp_path / "config.json").read_text()) | change
  (tmp_path / "config.json").write_text(json.dumps(raw))
  assert words in sentence(formats.load, tmp_path, model(name).config)
