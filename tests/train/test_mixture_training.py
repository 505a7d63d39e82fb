"""A mixture of experts from text: it learns, is written, and decodes with drafts as without."""

import json

import numpy as np
import pytest
from options import changed

import specjax
from specjax.models.config import Experts
from specjax.train import lm
from specjax.train.recipe.config import Network


@pytest.mark.full
@pytest.mark.parametrize("router", ["softmax", "relu"])
def test_a_mixture_learns_and_decodes(router, tiny, tmp_path):
  config = changed(tiny, out=str(tmp_path / "run"), experts=4, router=router, mlp_width=24)
  lm.main(config)
  with open(f"{config.out}/metrics.jsonl") as file:
    loss = [json.loads(line)["loss"] for line in file]
  assert np.mean(loss[-5:]) < 0.5 * loss[0]
  model = specjax.load(f"{config.out}/model")
  assert model.config.experts == Experts(4, 2 if router == "softmax" else 4, 24, router)
  asked = [model.chat("3 pens and 4?"), model.chat("5 cups and 2?")]
  plain, guessed = (
    specjax.Decoder(model, drafter, batch=2)(asked, 20) for drafter in ("none", "prompt_lookup-4")
  )
  assert [r.tokens for r in guessed] == [r.tokens for r in plain]


def test_what_experts_may_not_be():
  with pytest.raises(
    ValueError, match=(r"`chosen` must be between 1 and 4 \(of 4 experts\), got 5\.")
  ):
    _ = Network(32, 2, 2, 1, 16, 24, experts=4, chosen=5).sizes
