"""Training the head with which SpecDec++ ends a draft: lessons, calibration, a whole run."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

import specjax
from specjax.checkpoints import parts
from specjax.data.packing import pack
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer, attention_mask, init
from specjax.train import acceptance, lm
from specjax.train.recipe.calibration import reliability
from specjax.train.recipe.config import Training

SMALL = ModelConfig(vocab_size=11, width=8, layers=1, heads=1, kv_heads=1, head_dim=4, mlp_width=8)
LARGE = dataclasses.replace(SMALL, width=12, layers=2)


LENGTH = 24


def random_params(config: ModelConfig, seed: int):
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(functools.partial(init, config), jax.random.key(0))
  return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)


@functools.partial(jax.jit, static_argnums=0)
def states_and_logits(config: ModelConfig, params, ids):
  position = jnp.arange(LENGTH)[None]
  state, _ = Transformer(config).apply(params, ids, position, attention_mask(ids * 0, True))
  return state[0], Transformer(config).apply(params, state, method="head")[0]


def alone(config: ModelConfig, params, text):
  """(states [n, E], probabilities f64[n, V]) of one document by itself, padded at its end."""
  ids = np.zeros((1, LENGTH), np.int32)
  ids[0, : len(text)] = text
  state, logits = (np.asarray(x)[: len(text)] for x in states_and_logits(config, params, ids))
  chance = np.exp(np.float64(logits) - logits.max(-1, keepdims=True))
  return state, chance / chance.sum(-1, keepdims=True)


@pytest.mark.parametrize("mixed", [0.0, 0.4])
def test_the_lessons_are_those_of_each_document_alone(mixed, monkeypatch):
  rng = np.random.default_rng(0)
  texts = [
    (rng.integers(0, 11, n).tolist(), [False] * 3 + [True] * (n - 3)) for n in (9, 12, 8, 15)
  ]
  rows = pack(texts, LENGTH)
  read = []
  model = Transformer(SMALL)
  params = random_params(LARGE, 1), random_params(SMALL, 2)
  apply = Transformer.apply

  def watched(self, weights, *inputs, **options):
    if self is model and options.get("method") == "features":
      jax.debug.callback(lambda x: read.append(np.asarray(x)), inputs[0], ordered=True)
    return apply(self, weights, *inputs, **options)

  monkeypatch.setattr(Transformer, "apply", watched)
  models, key = (Transformer(LARGE), model), jax.random.key(3)
  examples = jax.jit(lambda params, rows: acceptance.examples(models, params, rows, key, mixed))
  states, chance, weight = map(np.asarray, examples(params, rows))
  jax.effects_barrier()
  monkeypatch.undo()
  text, mixture = read
  np.testing.assert_array_equal(text, rows.tokens)
  shape = rows.tokens.shape
  states, chance, weight = states.reshape(*shape, -1), chance.reshape(shape), weight.reshape(shape)
  assert (weight <= rows.mask).all()
  np.testing.assert_array_equal(mixture[weight == 0], text[weight == 0])
  share = 1 - weight.sum() / rows.mask.sum()
  assert share == 0 if mixed == 0 else 0.15 < share < 0.65
  said_another = 0
  for r in range(len(text)):
    for s in range(rows.segment[r].max() + 1):
      here = np.flatnonzero(rows.segment[r] == s)
      (_, p), (_, q) = (
        alone(c, w, text[r, here]) for c, w in zip((LARGE, SMALL), params, strict=True)
      )
      want, _ = alone(SMALL, params[1], mixture[r, here])
      np.testing.assert_allclose(states[r, here], want, atol=1e-4)
      for i, t in enumerate(here):
        if weight[r, t]:
          x = mixture[r, t]
          np.testing.assert_allclose(chance[r, t], min(1, p[i - 1, x] / q[i - 1, x]), rtol=1e-3)
          said_another += x != text[r, t]
  assert said_another > 5


def test_reliability_by_hand():
  predicted, chance = np.array([0.05, 0.15, 0.12, 1.0]), np.array([0.0, 0.5, 0.1, 0.9])
  assert reliability(predicted, chance) == {
    "ece": round((0.05 + 2 * (0.3 - 0.135) + 0.1) / 4, 4),
    "bins": [(1, 0.05, 0.0), (2, 0.135, 0.3), (1, 1.0, 0.9)],
  }


@pytest.mark.parametrize("refusal", [1.0, 6.0])
def test_the_weight_of_refusals_can_be_taken_out(refusal):
  chance = np.array([0.0, 0.2, 0.7, 1.0])
  grid = np.linspace(1e-6, 1 - 1e-6, 100_001)
  best = [
    grid[np.argmin(-(y * np.log(grid) + refusal * (1 - y) * np.log(1 - grid)))] for y in chance
  ]
  np.testing.assert_allclose(acceptance.without_weight(np.array(best), refusal), chance, atol=1e-4)


@pytest.fixture(scope="module")
def run(lm_run, tmp_path_factory):
  """A finished run; the draft model is a shorter-trained, smaller one with the same tokenizer."""
  small = changed(lm_run, out=str(tmp_path_factory.mktemp("small")), width=16, layers=1, steps=30)
  lm.main(small)
  config = acceptance.Config(
    model=f"{lm_run.out}/model", draft=f"{small.out}/model", data=lm_run.data,
    out=str(tmp_path_factory.mktemp("acceptance")), held_out=24, max_new_tokens=16, blocks=2,
    length=64, training=Training(batch=8, steps=60, rate=3e-3, warmup=5, save_every=20, devices=1),
  )  # fmt: skip
  acceptance.main(config)
  return config


def losses(config) -> list[float]:
  with open(f"{config.out}/metrics.jsonl") as file:
    return [json.loads(line)["loss"] for line in file]


@pytest.mark.full
def test_the_loss_falls_and_the_report_adds_up(run):
  found = losses(run)
  assert len(found) == run.training.steps and np.mean(found[-5:]) < 0.9 * np.mean(found[:5])
  with open(f"{run.out}/report.json") as file:
    report = json.load(file)
  for name in ("predicted", "without_weight"):
    bins = report[name]["bins"]
    assert sum(n for n, _, _ in bins) == report["tokens"] > 100
    mean = sum(n * y for n, _, y in bins) / report["tokens"]
    assert mean == pytest.approx(report["accepted"], abs=1e-3)
  # A refusal counts six times: what is predicted is too low until that is taken out.
  assert report["without_weight"]["ece"] < report["predicted"]["ece"]


@pytest.mark.full
def test_what_is_written_is_read_back(run, final_state):
  small = specjax.load(run.draft)
  loaded = parts.load_acceptance(f"{run.out}/model", small.config.width)
  assert loaded.blocks == 2
  jax.tree.map(np.testing.assert_array_equal, loaded.params, final_state(run.out)["params"])
  with pytest.raises(ValueError, match="is for a draft model of width 16, not 8"):
    parts.load_acceptance(f"{run.out}/model", 8)
  with pytest.raises(ValueError, match="this is no acceptance head"):
    parts.load_acceptance(run.draft, 16)


@pytest.mark.full
def test_a_run_goes_on_where_it_was_cut(run, tmp_path):
  again = changed(run, out=str(tmp_path / "run"))
  shutil.copytree(run.out, again.out)
  shutil.rmtree(f"{again.out}/checkpoints/{run.training.steps}")
  acceptance.main(again)
  assert losses(again) == losses(run)
  name = "model/acceptance.safetensors"
  assert (tmp_path / "run" / name).read_bytes() == pathlib.Path(run.out, name).read_bytes()


@pytest.mark.full
def test_a_draft_model_of_another_vocabulary_is_refused(run, tmp_path):
  with pytest.raises(ValueError, match=r"draft='gsm8k-7m' has another vocabulary than .*: id 257"):
    acceptance.main(changed(run, out=str(tmp_path), draft="gsm8k-7m"))
  assert not (tmp_path / "answers.jsonl").exists()
