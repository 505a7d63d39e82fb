"""The learned filter: its traces, its threshold, the run and its files."""

import json

import numpy as np
import pytest
from options import changed

from specjax.checkpoints import parts
from specjax.data import lists
from specjax.decoding.diffusion_decoder import DiffusionDecoder
from specjax.diffusion import caches
from specjax.names.load import load
from specjax.train import filter as script
from specjax.train.recipe.calibration import threshold
from specjax.train.recipe.config import Training
from specjax.train.recipe.traces import collect

W = 4  # that of `block_denoiser`, too


@pytest.mark.slow
def test_traces_follow_the_models_own_answers(list_denoiser):
  model = load(list_denoiser)
  prompts = [model.chat(r["question"]) for r in lists.records(1, 8)]
  trace, share = collect(model, prompts, 6, W, 4)
  assert 0 < share <= 1
  assert trace.confidence.shape[1] == W and ((trace.confidence > 0) & (trace.confidence <= 1)).all()
  assert set(trace.prompt) == set(range(8)) and trace.open.any(1).all()
  # The oracle commits all that is right, so that only wrong guesses are seen twice.
  answers = DiffusionDecoder(model, "confidence", blocks=W, stopping="whole", batch=4)(prompts, 6)
  for i, answer in enumerate(answers):
    own = trace.prompt == i
    right = (trace.right & trace.open)[own].sum()
    forced = (~(trace.right & trace.open)[own].any(1)).sum()
    assert right + forced == answer.filling.filled


@pytest.mark.slow
def test_a_block_denoisers_traces_are_those_of_whole_passes(block_denoiser, monkeypatch):
  model = load(block_denoiser)
  prompts = [model.chat(r["question"]) for r in lists.records(1, 4)]
  cached, share = collect(model, prompts, 6, W, 4)
  monkeypatch.setattr(caches, "committed", caches.none)
  whole, same = collect(model, prompts, 6, W, 4)
  assert share == same
  for name in ("right", "open", "prompt"):
    np.testing.assert_array_equal(getattr(cached, name), getattr(whole, name))
  np.testing.assert_allclose(cached.confidence, whole.confidence, atol=1e-5)


@pytest.mark.parametrize(
  ("said", "right", "precision", "passing"),
  [
    ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1], 1.0, 2),
    ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1], 0.75, 4),
    ([0.9, 0.8, 0.8, 0.6], [1, 1, 0, 0], 1.0, 1),  # equals pass together
    ([0.9, 0.8], [0, 0], 0.9, 1),  # none is good: as few as can be
  ],
)
def test_the_threshold_is_the_least_that_is_precise(said, right, precision, passing):
  said = np.array(said, np.float32)
  least = threshold(said, np.array(right, bool), precision)
  assert (said > np.float32(least)).sum() == passing


@pytest.mark.slow
@pytest.mark.full(but=["block_denoiser*"])
@pytest.mark.parametrize(("model", "block"), [("list_denoiser", W), ("block_denoiser", None)])
def test_a_run_gives_a_filter_that_decodes(request, tmp_path, model, block):
  model = request.getfixturevalue(model)
  config = script.Config(
    model=model, data="lists:1:24", out=str(tmp_path / "run"), questions=24, held_out=8,
    new=6, block=block, hidden=5, answer_batch=8,
    training=Training(batch=8, steps=12, save_every=6, devices=1),
  )  # fmt: skip
  script.main(config)
  report = json.loads((tmp_path / "run" / "report.json").read_text())
  assert report["parameters"] == W * 5 + 5 + 5 * W + W
  assert 0 <= report["held_out"]["precision"] <= 1 and 0 < report["threshold"] < 1
  decoder = DiffusionDecoder(load(model), f"learned[{tmp_path}/run/model]")
  assert decoder(["copy : Ada Bob ="], 6)[0].passes <= 6
  script.main(config)  # finished: nothing is done again
  assert json.loads((tmp_path / "run" / "report.json").read_text()) == report
  with pytest.raises(ValueError, match="hidden=5"):
    script.main(changed(config, hidden=6))


def test_what_is_no_filter_is_refused(tmp_path):
  (tmp_path / "config.json").write_text('{"verifier": "judge"}')
  with pytest.raises(ValueError, match="this is no filter"):
    parts.load_filter(tmp_path)
