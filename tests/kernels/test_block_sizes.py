"""Block sizes: guessed, measured, saved, read again."""

import json

import pytest

from specjax.kernels.platform import device
from specjax.kernels.tree_attention import config, measured, tune

SHAPE = config.AttentionShape(capacity=4096, width=64, itemsize=4, rows=32)


@pytest.fixture
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  measured.read.cache_clear()
  yield tmp_path
  measured.read.cache_clear()


def tuned(fastest):
  """`tune.main`, as if blocks were the faster the nearer they are to `fastest` of each capacity."""

  def measure(settings, implementation, capacity, tried):
    return {size: 1e-3 + abs(size - fastest[capacity]) for size in tried}

  tune.main(tune.Config(capacity=tuple(fastest)), measure)


def test_the_fastest_is_saved_and_used_for_its_class_alone(home, capsys):
  guess = config.block("xla", SHAPE)
  tuned({4096: 1000, 1024: 250})
  assert "4096" in capsys.readouterr().out
  assert config.block("xla", SHAPE) == 1024 != guess
  assert config.block("xla", SHAPE._replace(capacity=3000, rows=4)) == 1024
  assert config.block("xla", SHAPE._replace(capacity=1024)) == 256
  for other in (SHAPE._replace(capacity=8192), SHAPE._replace(itemsize=2)):
    assert config.block("xla", other) == guess


def test_a_second_run_adds_to_the_first(home):
  tuned({1024: 256, 4096: 512})
  tuned({4096: 2048})
  assert config.block("xla", SHAPE) == 2048
  assert config.block("xla", SHAPE._replace(capacity=1024)) == 256


def test_trivial_sizes_are_measured_for_true(home):
  settings = tune.Config(capacity=(48,), heads=2, kv_heads=1, width=8, nodes=2, calls=1, repeats=1)
  taken = tune.measure(settings, "xla", 48, (16, 48))
  assert set(taken) == {16, 48} and all(0 < each < 60 for each in taken.values())


@pytest.mark.parametrize("text", ["{", "[]", '{"cpu": 3}', '{"cpu": {"a": 1}, "b": null}'])
def test_a_broken_file_is_named_and_not_used(home, text):
  measured.path().parent.mkdir()
  measured.path().write_text(text)
  with pytest.warns(UserWarning, match=f"{measured.path().name} is not used, delete it"):
    assert config.block("xla", SHAPE) == 128


@pytest.mark.parametrize("size", [0, -1, 100, "256", None, 4096])
def test_a_size_that_no_call_may_have_is_not_used(home, size):
  measured.path().parent.mkdir()
  of_class = {SHAPE.of_class("xla"): size}
  measured.path().write_text(json.dumps({device().device_kind: of_class}))
  assert config.block("xla", SHAPE) == 128


def test_what_does_not_fit_on_chip_is_no_choice():
  rows = {size: SHAPE._replace(rows=n) for size, n in ((1024, 64), (128, 4096), (None, 1 << 16))}
  for largest, shape in rows.items():
    assert max(config.sizes("pallas_tpu", shape), default=None) == largest
  assert config.sizes("xla", SHAPE._replace(capacity=200)) == [128, 200]
