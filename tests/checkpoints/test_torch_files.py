"""pytorch_model.bin: what torch writes is read without it, and nothing of a file is executed."""

import json
import pathlib
import pickle
import shutil
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
from few_bits_writer import torch_file
from safetensors.numpy import load_file

from specjax.checkpoints import hf, stored

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "hf" / "qwen3"
BF16 = ml_dtypes.bfloat16


@pytest.fixture
def copied(tmp_path):
  """A directory without weights, and its tensors."""
  directory = shutil.copytree(FIXTURE, tmp_path / "qwen3")
  tensors = load_file(directory / "model.safetensors")
  (directory / "model.safetensors").unlink()
  return directory, tensors


def same(directory):
  jax.tree.map(np.testing.assert_array_equal, hf.load(directory).params, hf.load(FIXTURE).params)


def test_one_file(copied):
  directory, tensors = copied
  torch_file(directory / "pytorch_model.bin", tensors)
  same(directory)


def test_shards(copied):
  directory, tensors = copied
  names, table = list(tensors), {}
  for i, some in enumerate((names[::2], names[1::2])):
    file = f"pytorch_model-{i}.bin"
    torch_file(directory / file, {name: tensors[name] for name in some})
    table |= dict.fromkeys(some, file)
  (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
  same(directory)


def test_views_and_dtypes(tmp_path):
  x = np.arange(24, dtype=np.float32).reshape(4, 6)
  tensors = {
    "turned": x.T, "rows": x[1:3], "column": x[:, 2], "half": x.astype(np.float16),
    "brain": x.astype(BF16), "long": np.arange(3), "byte": np.arange(3, dtype=np.uint8),
    "one": np.array(3, np.float32),
  }  # fmt: skip
  torch_file(tmp_path / "x.bin", tensors)
  found = stored.of_torch(tmp_path / "x.bin")
  assert list(found) == list(tensors)
  for name, want in tensors.items():
    got = found[name].read()
    assert got.dtype == want.dtype, name
    np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(found["turned"].read((slice(1, 3), slice(0, 2))), x.T[1:3, :2])
  np.testing.assert_array_equal(found["half"].read((slice(1, 3),)), tensors["half"][1:3])


class Harm:
  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path("harm"),)


def call(name, *given):
  return b"c" + name.replace(" ", "\n").encode() + b"\n" + b"".join(given)


@pytest.mark.parametrize(
  ("wrap", "words"),
  [
    (lambda state: pickle.dumps(Harm(), 2)[2:-1], r"more than tensors: __builtin__\.getattr"),
    (lambda state: pickle.dumps(Harm(), 4)[2:-1], r"more than tensors: pathlib\.Path\.touch"),
    (
      lambda state: call("os system", b"(X\x04\x00\x00\x00truetR"),
      r"more than tensors: os\.system",
    ),
    (
      lambda state: b"(X\x04\x00\x00\x00trueios\nsystem\n",
      "more than tensors: the instruction INST",
    ),
    (lambda state: call("torch FloatStorage", b")R"), "more than tensors: a call"),
    (lambda state: b"X\x01\x00\x00\x00xQ", "is damaged, or holds more than tensors"),
    (lambda state: b"}", None),
    (lambda state: b"]", "holds something else than tensors by name"),
    (lambda state: b"}(X\x01\x00\x00\x00aNu", "holds something else than tensors by name"),
    (lambda state: b"a", "is damaged, or holds more than tensors"),
    (lambda state: b"", "is damaged, or holds more than tensors"),
  ],
)
def test_nothing_is_executed(wrap, words, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  file = tmp_path / "x.bin"
  torch_file(file, {"a": np.ones(3, np.float32)}, wrap)
  if words is None:
    assert stored.of_torch(file) == {}
  else:
    with pytest.raises(ValueError, match=rf"x\.bin .*{words}"):
      stored.of_torch(file)
  assert not (tmp_path / "harm").exists()


def longer(state):
  return state.replace(b"J" + (3).to_bytes(4, "little") + b"t(", b"J\x09\x00\x00\x00t(")


def before(state):
  return state.replace(b"Q" + b"J" + bytes(4), b"QJ\xff\xff\xff\xff")


@pytest.mark.parametrize(
  ("wrap", "words"),
  [(longer, "a tensor beyond its numbers"), (before, "a tensor of no sensible shape")],
)
def test_a_tensor_stays_in_its_numbers(wrap, words, tmp_path):
  file = tmp_path / "x.bin"
  torch_file(file, {"a": np.ones(3, np.float32)}, wrap)
  with pytest.raises(ValueError, match=words):
    stored.of_torch(file)


def compressed(file):
  with zipfile.ZipFile(file) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(name, content)


def other_bytes(file):
  with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning):
    archive.writestr("archive/byteorder", "big")


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (compressed, "compressed tensors"),
    (other_bytes, "numbers whose first byte is the highest"),
    (lambda file: file.write_bytes(file.read_bytes()[:200]), "is damaged, or no archive of torch"),
    (lambda file: file.write_bytes(b"\x80\x02\x8a\nl\xfc"), "as torch.save writes it since 1.6"),
    (lambda file: file.write_bytes(b""), "is damaged, or no archive of torch"),
  ],
)
def test_other_files_are_named(change, words, tmp_path):
  file = tmp_path / "x.bin"
  torch_file(file, {"a": np.ones(64, np.float32)})
  change(file)
  with pytest.raises(ValueError, match=words):
    stored.of_torch(file)


@pytest.mark.parametrize("seed", range(40))
def test_noise_is_one_sentence(seed, tmp_path):
  rng = np.random.default_rng(seed)
  file = tmp_path / "x.bin"
  torch_file(file, {"a": np.ones((3, 4), np.float32), "b": np.ones(2, np.float16)})
  data = bytearray(file.read_bytes())
  for at in rng.integers(0, len(data), 6):
    data[at] = rng.integers(256)
  file.write_bytes(data)
  try:
    for each in stored.of_torch(file).values():
      each.read()
  except ValueError as error:
    assert "x.bin" in str(error)


def test_what_torch_writes(tmp_path):
  torch = pytest.importorskip("torch")
  x = torch.arange(24.0).reshape(4, 6)
  tensors = {
    "x": x, "turned": x.T, "shared": x[1:], "brain": x.bfloat16(),
    "eight": x.to(torch.float8_e4m3fn), "long": torch.arange(3), "one": torch.tensor(2.0),
    "none": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(x * 2),
  }  # fmt: skip
  file = tmp_path / "x.bin"
  torch.save(torch.nn.Linear(2, 3).state_dict(), file)
  assert {k: v.shape for k, v in stored.of_torch(file).items()} == {"weight": (3, 2), "bias": (3,)}
  torch.save(tensors, file)
  found = stored.of_torch(file)
  for name, want in tensors.items():
    got = found[name].read()
    np.testing.assert_array_equal(got.astype(np.float32), want.detach().float().numpy())
