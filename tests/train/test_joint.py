"""A model that is tuned with its head: what moves it, what holds it, and what is exact for it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

import specjax
from specjax.checkpoints import heads as checkpoint
from specjax.data.packing import pack
from specjax.models import lora
from specjax.models.transformer import Transformer
from specjax.train import joint
from specjax.train.recipe.draft_positions import Objective, PositionSource


def figures_of(config) -> list[dict]:
  with open(f"{config.out}/metrics.jsonl") as file:
    return [json.loads(line) for line in file]


def report_of(config) -> dict:
  with open(f"{config.out}/report.json") as file:
    return json.load(file)


@pytest.mark.full
def test_a_new_model_and_a_head_for_it(warm, tiny_joint, tmp_path):
  config = changed(tiny_joint, out=str(tmp_path))
  joint.main(config)
  old, new = (specjax.load(x, jnp.float32) for x in (config.model, f"{config.out}/model"))
  for name, x in old.params["params"].items():
    same = jax.tree.leaves(jax.tree.map(np.array_equal, x, new.params["params"][name]))
    assert all(same) != name.startswith("layer_"), name
  figures = figures_of(config)
  assert abs(figures[0]["loss"] - figures[0]["teacher"]) < 1e-6  # the head's weight has not risen
  assert figures[-1]["loss"] > figures[-1]["teacher"]
  report, alone = report_of(config), report_of(warm)
  assert report["exactness"].startswith("a new model")
  assert 0 < report["teacher"] < 0.1 and 0.8 < report["agreement"] < 1
  assert np.all(np.array(report["hit_rates"])[:, 0] > np.array(alone["hit_rates"])[:, 0])
  prompts = [new.chat("3 pens and 4?"), new.chat("11 figs and 2?")]
  plain = specjax.generate(new, prompts, max_new_tokens=20)
  ours = specjax.generate(new, prompts, drafter=f"medusa-8[{config.out}/head]", max_new_tokens=20)
  assert [r.tokens for r in ours] == [r.tokens for r in plain]
  assert sum(r.passes for r in ours) < sum(r.passes for r in plain)


@pytest.mark.slow
def test_the_heads_loss_reaches_the_model_and_nothing_else_moves_it(warm):
  """At the start the model is its own teacher, whose divergence has no gradient."""
  model = specjax.load(warm.model)
  loaded = checkpoint.load(f"{warm.out}/model", model.config)
  rng = np.random.default_rng(0)
  rows = pack([(rng.integers(0, 290, n).tolist(), [True] * n) for n in (9, 14, 20, 17)], 24)
  batch = PositionSource(rows, None, loaded.head.depth, 8, 0).sample(np.arange(2), 0)
  updates = lora.start(jax.random.key(0), model.params, 3)
  trained = {"updates": updates, "head": loaded.params["params"]}
  step = joint.Step(batch, np.ones(2, np.float32))
  for most in (0.0, 1.0):
    tuning = joint.Tuning(Transformer(model.config), Objective(loaded.head, None), "teacher", most)
    gradient, _ = jax.jit(jax.grad(tuning.loss, has_aux=True))(trained, (model.params, {}), step)
    for path, x in jax.tree.leaves_with_path(gradient["updates"]):
      moved = most > 0 and path[-1].key == "up"  # what it multiplies is 0 at the start
      assert (np.abs(x).max() > 1e-4) if moved else (np.abs(x).max() < 1e-5), path


def test_the_weight_of_the_heads_rises_like_a_sine():
  for done in (0.0, 0.25, 1.0):
    got = joint.risen(0.2, jnp.full(3, done))
    np.testing.assert_allclose(got, 0.2 * np.sin(np.pi / 2 * done), rtol=1e-6)


def test_how_far_two_models_are_apart():
  rng = np.random.default_rng(0)
  new, old = rng.normal(size=(2, 2, 3, 7)).astype(np.float32) * 2
  labels = rng.integers(0, 7, (2, 3)).astype(np.int32)
  p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in np.float64((old, new)))
  of_label = (-np.log(np.take_along_axis(x, labels[..., None], -1)[..., 0]) for x in (q, p))
  want = {
    "teacher": (p * np.log(p / q)).sum(-1),
    "agreement": p.argmax(-1) == q.argmax(-1),
    **dict(zip(("text", "text_before"), of_label, strict=True)),
  }
  got = joint.distances(jnp.asarray(new), jnp.asarray(old), jnp.asarray(labels))
  assert got.keys() == want.keys()
  for name, x in want.items():
    np.testing.assert_allclose(got[name], x, rtol=1e-5, err_msg=name)
