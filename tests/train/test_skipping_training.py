"""Layers that learn to skip: what is trained is what decodes, and it comes to what is asked for."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import specjax
from specjax.models import lora
from specjax.models.skipping.duo import BIG, DUO, NONE, SMALL
from specjax.models.skipping.first import ROUTERS, Routers
from specjax.names.build.skipping import skipping
from specjax.train import duo
from specjax.train import skipping as training
from specjax.train.recipe.config import Training
from specjax.train.recipe.reading import loss_of, one_each

MODEL = specjax.load("gsm8k-7m")
L, E = MODEL.config.layers, MODEL.config.width
RNG = np.random.default_rng(0)
UPDATES = jax.tree.map(
  lambda x: jax.numpy.asarray(RNG.normal(size=x.shape) / 60, x.dtype),
  lora.start(jax.random.key(0), MODEL.params, 2),
)
BESIDE = jax.tree.map(
  lambda x: x + jax.numpy.asarray(RNG.normal(size=x.shape) / 20, x.dtype),
  duo.start(MODEL.config, MODEL.params, 32),
)
OF_LAYERS = Routers(*(jax.numpy.asarray(RNG.normal(size=n), "float32") for n in ((L, E), L)))


@pytest.mark.slow
@pytest.mark.full(but=["first", "duo", "None"])
@pytest.mark.parametrize("name", ["skip_decode-3,span=16,first=1", "first", "duo", None])
def test_a_row_is_read_as_it_is_decoded(name, tmp_path):
  """The loss of a text is the mean surprise that its decoding reports."""
  model, params, chosen = MODEL, MODEL.params, None
  if name == "first":
    specjax.checkpoints.routers.save(tmp_path, UPDATES, OF_LAYERS, base="gsm8k-7m")
    name, chosen = f"first[{tmp_path}]", OF_LAYERS
    params = lora.merge(params, UPDATES)
  elif name == "duo":
    specjax.checkpoints.duo.save(tmp_path, BESIDE, base="gsm8k-7m")
    name, chosen = f"duo[{tmp_path}]", duo.by(L, duo.routed)
    params = {**params, DUO: BESIDE}
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
    if name is not None and name.startswith("duo"):
      read = loss_of(MODEL.config, params, one_each([document], 96), model.skipping)
      np.testing.assert_allclose(runs, read[1], atol=1e-6)
      assert 0.1 < float(runs.mean()) < 0.9


@pytest.fixture(scope="module")
def config(lm_run):
  return training.Config(
    model=f"{lm_run.out}/model", data=lm_run.data, out="", held_out=24, rank=4, length=32,
    training=Training(steps=60, batch=8, rate=1e-2, warmup=5, save_every=30, devices=1),
  )  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_model_learns_to_be_read_by_fewer_layers(config, tmp_path):
  name = "skip_decode-1,span=4"
  training.main(dataclasses.replace(config, out=str(tmp_path), skipping=name))
  report = json.loads((tmp_path / "report.json").read_text())["held_out"]
  tuned = specjax.load(f"{tmp_path}/model", skipping=name)
  assert tuned.label.endswith("LOSSY (skip_decode-1,span=4)")
  first = json.loads((pathlib.Path(tmp_path) / "metrics.jsonl").read_text().splitlines()[0])
  assert report["skipping"] < first["entropy"]


@pytest.mark.slow
def test_a_choice_says_what_it_reads():
  """The share that is read is that of the modules, and the big one alone is the whole model."""
  params = {**MODEL.params, DUO: BESIDE}
  ids = MODEL.encode("A pen costs 3 dollars. What do 7 cost?")
  rows = one_each([(ids, [False] * 4 + [True] * (len(ids) - 4))], 32)
  whole, _ = loss_of(MODEL.config, params, rows, None)
  for module, share in {NONE: 0, SMALL: 32 / MODEL.config.mlp_width, BIG: 1}.items():
    entropy, read = loss_of(MODEL.config, params, rows, duo.by(L, duo.always(module)))
    np.testing.assert_allclose(read, share, atol=1e-6)
    assert (float(entropy) == pytest.approx(float(whole), rel=1e-5)) == (module == BIG)
  chances = jax.numpy.eye(3)[np.arange(L) % 3]  # a sure module for each layer
  drawn = duo.at_random(jax.random.key(0), chances)
  _, read = loss_of(MODEL.config, params, rows, duo.by(L, drawn))
  cost = np.array([0, 32 / MODEL.config.mlp_width, 1])
  np.testing.assert_allclose(read[0], cost[np.arange(L) % 3], atol=1e-6)


def test_a_small_mlp_begins_as_the_strongest_part_of_the_big_one():
  """With all its width it is the big one."""
  own = duo.start(MODEL.config, MODEL.params, MODEL.config.mlp_width)["layer_3"]
  h = RNG.normal(size=MODEL.config.width)
  found, big = [], MODEL.params["params"]["layer_3"]
  pairs = (own["small_gate_up"], own["small_down"]), (big["gate_up"], big["down"])
  for gate_up, down in pairs:
    gate, up = np.split(np.asarray(gate_up, np.float64) @ h, 2)
    found.append(np.asarray(down, np.float64) @ (gate / (1 + np.exp(-gate)) * up))
  np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.full
def test_small_mlps_learn_and_routers_hold_the_budget(config, tmp_path):
  shared = {f.name: getattr(config, f.name) for f in dataclasses.fields(duo.reading.Config)}
  options = duo.Config(**shared | {"out": str(tmp_path), "keep": 0.4, "router_rate": 1e-2})
  duo.main(options)
  lines = {
    part: [json.loads(x) for x in (tmp_path / part / "metrics.jsonl").read_text().splitlines()]
    for part in ("mlps", "routers")
  }
  report = json.loads((tmp_path / "report.json").read_text())
  losses = [x["loss"] for x in lines["mlps"]]
  assert np.mean(losses[-10:]) < np.mean(losses[:10])
  assert lines["routers"][0]["kept"] == 1 and np.mean(report["kept"]) <= 0.7
  model = specjax.load(config.model, skipping=f"duo[{tmp_path}/model]")
  texts = [
    specjax.Decoder(model, drafter)([model.chat("3 pens and 4?")], 12)[0].tokens
    for drafter in ("none", "prompt_lookup")
  ]
  assert texts[0] == texts[1]
  assert model.label.endswith(f"LOSSY (duo[{tmp_path}/model])")
  kept = (tmp_path / "model" / "model.safetensors").read_bytes()
  duo.main(options)  # a run that has ended trains nothing
  assert (tmp_path / "model" / "model.safetensors").read_bytes() == kept
