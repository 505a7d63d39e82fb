"""The search of a set of sublayers: what one is worth, and that the best is found and used."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

import specjax
from specjax import Decoder
from specjax.checkpoints import hf
from specjax.drafters.layers import skipped_layers
from specjax.eval import skip_search
from specjax.eval.options import Tune
from specjax.models.config import Config, Experts
from specjax.models.transformer import init

L = 3
CONFIG = Config(48, 16, L, 2, 1, 8, 24, max_length=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A random model whose second layer adds next to nothing."""
  params = jax.jit(functools.partial(init, CONFIG))(jax.random.key(1))
  layers = jax.tree.map(lambda x: x * 12 + 0.01, params["params"])
  own = layers["layer_1"]
  layers["layer_1"] = own | {"out": own["out"] * 1e-6, "down": own["down"] * 1e-6}
  path = tmp_path_factory.mktemp("tiny")
  hf.save(path, CONFIG, {"params": layers}, None, dtype=np.float32)
  return dataclasses.replace(specjax.load(str(path)), stop=())


def test_worth_is_expected_tokens_over_passes():
  for rate, share in ((0.5, 0.3), (0.9, 0.2), (1.0, 0.5), (0.0, 0.1)):
    by_hand = [sum(rate**j for j in range(d + 1)) / (d * share + 1) for d in (1, 2, 3)]
    most, length = skip_search.worth(rate, share, 3)
    assert most == pytest.approx(max(by_hand)) and by_hand[length - 1] == max(by_hand)


def test_the_path_passes_the_peak():
  peak = np.array([[1, 0], [0, 1], [0, 0]], bool)
  best, most = skip_search.search(lambda run: float((run == peak).sum()), L, 200, 0)
  np.testing.assert_array_equal(best, peak)
  assert most == peak.size


def test_weights_are_counted(model):
  sizes, head = skip_search.weights_read(model)
  assert sizes.shape == (L, 2) and head == 48 * 16
  assert sizes[0].tolist() == [16 + (2 + 2) * 8 * 16 + 16 * 16, 16 + 3 * 16 * 24]


def test_a_token_reads_its_experts_alone(model):
  config = dataclasses.replace(CONFIG, experts=Experts(4, 2, 5))
  params = jax.eval_shape(functools.partial(init, config), jax.random.key(0))
  sizes, _ = skip_search.weights_read(dataclasses.replace(model, config=config, params=params))
  assert sizes[0, 1] == 16 + 4 * 16 + 2 * 3 * 16 * 5


@pytest.mark.full
def test_what_adds_nothing_is_skipped(model, tmp_path, capsys):
  (tmp_path / "ids.jsonl").write_text(
    "".join(json.dumps({"tokens": t}) + "\n" for t in ([5, 6, 7], [9]))
  )
  config = Tune(
    drafters=("self_speculative",), method="skipped_layers", prompts=str(tmp_path / "ids.jsonl"),
    max_new_tokens=40, batch=2, tries=48,
  )  # fmt: skip
  summary = skip_search.run(model, config, tmp_path / "out")
  run = skipped_layers.load(tmp_path / "out/skipped.json", L)
  assert not run[1].any() and summary["tokens_per_pass"] > 1.0
  assert "1 attentions and 1 MLPs" in skip_search.verdict(summary) or (~run).sum() > 2
  plain, drafted = (
    Decoder(model, name)([[5, 6, 7]], 24)[0]
    for name in ("none", f"self_speculative-4,least=0.0[{tmp_path / 'out/skipped.json'}]")
  )
  assert plain.tokens == drafted.tokens and drafted.passes < plain.passes


@pytest.mark.parametrize("change, words", [
  ({"drafters": ("medusa",)},
   "`drafters` must be self_speculative and `temperature` 0 for.*got 'medusa' and "
   r"0\."), ({"temperature": 1.0},
   r"`temperature` 0 for method='skipped_layers', got 'self_speculative' and 1\."),
  ({"tries": 0}, r"`tries` must be between 8 and 2147483647, got 0\."), ({"max_new_tokens": 9},
   r"`max_new_tokens` must be between 33 and 2147483647, got 9\."),
])  # fmt: skip
def test_other_searches_are_refused(model, tmp_path, change, words):
  config = Tune(**{"drafters": ("self_speculative",), "method": "skipped_layers"} | change)
  with pytest.raises(ValueError, match=words):
    skip_search.run(model, config, tmp_path)
