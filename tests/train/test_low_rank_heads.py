"""Low-rank updates of a head: nothing at first, few numbers, in the end a part of its weights."""

import json
import pathlib

import jax
import numpy as np
import pytest
from options import changed

import specjax
from specjax.checkpoints import heads as checkpoint
from specjax.names.build.head import load_head
from specjax.names.grammar import Part
from specjax.train import heads
from specjax.train.recipe import low_rank

RANK, W = 2, 280


@pytest.fixture(scope="module")
def begun(warm, tmp_path_factory):
  """The directory of an untrained head in a draft vocabulary that a run would not choose."""
  model, path = specjax.load(warm.model), tmp_path_factory.mktemp("begun") / "model"
  head = checkpoint.load(f"{warm.out}/model", model.config).head
  ids = np.arange(W, dtype=np.int32)
  params = head.init(jax.random.key(0), model.params, ids)
  checkpoint.save(path, "medusa", warm.head, params, ((0,),), None, base=model.identity)
  return str(path)


@pytest.fixture(scope="module")
def run(warm, begun, tmp_path_factory):
  out = str(tmp_path_factory.mktemp("updates"))
  config = changed(
    warm, out=out, answers=f"{warm.out}/answers.jsonl", features=f"{warm.out}/features",
    init=begun, lora=RANK, steps=60, save_every=60, rate=1e-2,
  )  # fmt: skip
  heads.main(config)
  return config


@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_updates_that_are_zero_change_no_bit(name):
  model = specjax.load("gsm8k-7m")
  params = load_head(model, Part(name))[1].params["params"]
  updates = low_rank.of_head(jax.random.key(0), params, 4)
  whole = low_rank.added(params, updates)
  jax.tree.map(np.testing.assert_array_equal, whole, params)
  leaves = [np.asarray(x) for x in jax.tree.leaves(updates)]
  assert 2 * sum(bool(x.any()) for x in leaves) == len(leaves) > 0
  with pytest.raises(ValueError, match=r"`lora` must give updates fewer .* got 999\."):
    low_rank.of_head(jax.random.key(0), params, 999)


@pytest.mark.slow
def test_the_updates_alone_are_trained_and_are_added_in_the_end(run, begun, final_state):
  state, model = final_state(run.out), specjax.load(run.model)
  E, D, updates = model.config.width, run.head.depth, state["best"]
  sizes = {"block_0": D * (E + E), "lm_head": D * (W + E), "bias_0": D + E}
  assert updates.keys() == sizes.keys()
  count = RANK * sum(sizes.values())
  for part, copies in (("params", 1), ("best", 1), ("optimizer", 2)):
    leaves = [x.size for x in jax.tree.leaves(state[part])]
    assert copies * count <= sum(leaves) < copies * count + 9, part  # and counts of steps
  report = json.loads(pathlib.Path(run.out, "report.json").read_text())
  assert report["of updates"] == count and report["parameters"] == D * (E * E + E + W * E)
  before, after = (checkpoint.load(x, model.config).params for x in (begun, f"{run.out}/model"))
  np.testing.assert_array_equal(before["vocabulary"], after["vocabulary"])
  for name, x in before["params"].items():
    own = x + np.einsum("...or,...ri->...oi", updates[name]["up"], updates[name]["down"])
    assert np.abs(own - x).max() > 1e-3, name
    np.testing.assert_allclose(after["params"][name], own, rtol=1e-3, atol=1e-6, err_msg=name)
  lines = pathlib.Path(run.out, "metrics.jsonl").read_text().splitlines()
  losses = [json.loads(line)["loss"] for line in lines]
  assert losses[-1] < 0.9 * losses[0]
