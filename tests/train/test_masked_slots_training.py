"""Masked slots are trained through the frozen target, and decode what it says."""

import json

import jax
import numpy as np
import pytest
from options import changed

import specjax
from specjax.heads.masked_slots import MaskedSlotsConfig
from specjax.train import heads
from specjax.train.recipe.draft_positions import PositionSource


def losses_of(config) -> list[float]:
  with open(f"{config.out}/metrics.jsonl") as file:
    return [json.loads(line)["loss"] for line in file]


@pytest.mark.full
def test_a_cut_run_goes_on_learns_and_decodes(tiny_heads, tmp_path, final_state, monkeypatch):
  whole = changed(
    tiny_heads, out=f"{tmp_path}/whole", head=MaskedSlotsConfig(2, rank=4), steps=30, save_every=10
  )
  heads.main(whole)
  cut = changed(
    whole, out=f"{tmp_path}/cut", answers=f"{whole.out}/answers.jsonl",
    features=f"{whole.out}/features",
  )  # fmt: skip
  sample = PositionSource.sample

  def failing(self, chosen, step):
    if step == 17:
      raise RuntimeError("power cut")
    return sample(self, chosen, step)

  with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
    patch.setattr(PositionSource, "sample", failing)
    heads.main(cut)
  heads.main(cut)
  jax.tree.map(np.testing.assert_array_equal, final_state(cut.out), final_state(whole.out))
  assert losses_of(cut) == losses_of(whole)
  assert losses_of(whole)[-1] < 0.7 * losses_of(whole)[0]

  model = specjax.load(whole.model)
  prompts = [model.chat("3 pens and 4?"), model.chat("11 figs and 2?")]
  plain = specjax.generate(model, prompts, max_new_tokens=20)
  for rows in ("", "/rows-6"):
    drafter = f"masked_slots-8[{whole.out}/model]{rows}"
    ours = specjax.generate(model, prompts, drafter=drafter, max_new_tokens=20)
    assert [r.tokens for r in ours] == [r.tokens for r in plain]
    assert sum(r.passes for r in ours) < sum(r.passes for r in plain)


def test_a_rank_below_0_is_refused():
  with pytest.raises(ValueError, match=r"`rank` must be between 0 and 2147483647, got -1\."):
    heads.HEADS["masked_slots"][0](specjax.load("gsm8k-7m").target, MaskedSlotsConfig(rank=-1))
