"""Layers that learn to skip: what is trained is what decodes, and it comes to what is asked for."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import specjax
from specjax.decoding.skipping import skipping
from specjax.models import lora
from specjax.models.skipping.first import ROUTERS, Routers
from specjax.train import skipping as training
from specjax.train.recipe.config import Training
from specjax.train.skipping import loss_of, one_each

MODEL = specjax.load("gsm8k-7m")
L, E = MODEL.config.layers, MODEL.config.width
RNG = np.random.default_rng(0)
UPDATES = jax.tree.map(
  lambda x: jax.numpy.asarray(RNG.normal(size=x.shape) / 60, x.dtype),
  lora.start(jax.random.key(0), MODEL.params, 2),
)
OF_LAYERS = Routers(*(jax.numpy.asarray(RNG.normal(size=n), "float32") for n in ((L, E), L)))


@pytest.mark.parametrize("name", ["skip_decode-3-16-1", "first", None])
def test_a_row_is_read_as_it_is_decoded(name, tmp_path):
  """The loss of a text is the mean surprise that its decoding reports."""
  model, params, chosen = MODEL, MODEL.params, None
  if name == "first":
    specjax.checkpoints.routers.save(tmp_path, UPDATES, OF_LAYERS, base="gsm8k-7m")
    name, chosen = f"first[{tmp_path}]", OF_LAYERS
    params = lora.merge(params, UPDATES)
  elif name is not None:
    chosen, _ = skipping(name, MODEL.config, params)
  if name is not None:
    model = specjax.load(skipping=name)
  prompts = [MODEL.chat(q) for q in ("A pen costs 3 dollars. What do 7 cost?", "Tom has 2 cats.")]
  results = specjax.Decoder(model, temperature=1.0, batch=2)(prompts, 24)
  for prompt, result in zip(prompts, results, strict=True):
    document = (prompt + result.tokens, [False] * len(prompt) + [True] * len(result.tokens))
    entropy, runs = loss_of(MODEL.config, params, one_each([document], 96), chosen)
    assert float(entropy) == pytest.approx(-np.mean(result.log_probs), rel=1e-3)
    if name is not None and name.startswith("first"):
      assert 0 < np.asarray(runs[0]).sum() < L


@pytest.fixture(scope="module")
def config(lm_run):
  return training.Config(
    model=f"{lm_run.out}/model", data=lm_run.data, out="", held_out=24, rank=4, length=32,
    training=Training(steps=60, batch=8, rate=1e-2, warmup=5, save_every=30, devices=1),
  )  # fmt: skip


def test_routers_learn_the_share_that_is_asked_for(config, tmp_path):
  config = dataclasses.replace(config, out=str(tmp_path), keep=0.25)
  training.main(config)
  steps = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  report = json.loads((tmp_path / "report.json").read_text())
  assert steps[0]["kept"] == 1 and np.mean(report["kept"]) <= 0.5
  model = specjax.load(config.model, skipping=f"first[{tmp_path}/model]")
  assert model.params[ROUTERS]["w"].shape == (2, 32)
  plain, drafted = (
    specjax.Decoder(model, drafter)([model.chat("3 pens and 4?")], 12)
    for drafter in ("none", "prompt_lookup")
  )
  assert plain[0].tokens == drafted[0].tokens


def test_a_model_learns_to_be_read_by_fewer_layers(config, tmp_path):
  name = "skip_decode-1-4"
  training.main(dataclasses.replace(config, out=str(tmp_path), skipping=name))
  report = json.loads((tmp_path / "report.json").read_text())["held_out"]
  tuned = specjax.load(f"{tmp_path}/model", skipping=name)
  assert tuned.label.endswith("LOSSY (skip_decode-1-4)")
  first = json.loads((pathlib.Path(tmp_path) / "metrics.jsonl").read_text().splitlines()[0])
  assert report["skipping"] < first["entropy"]
