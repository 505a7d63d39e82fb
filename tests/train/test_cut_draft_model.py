"""A draft model cut out of its target: what is kept, what is learned, and that it drafts."""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

import specjax
from specjax import Decoder
from specjax.data.packing import PackedRows, pack
from specjax.models.transformer import Transformer, attention_mask
from specjax.train import draft_model
from specjax.train.draft_model import cut


@pytest.fixture(scope="module")
def done(tiny_heads, tmp_path_factory):
  """The options of a finished run."""
  fields = {f.name for f in dataclasses.fields(draft_model.Config)}
  shared = {k: getattr(tiny_heads, k) for k in fields if hasattr(tiny_heads, k)}
  config = draft_model.Config(**shared | {"keep": 1, "out": str(tmp_path_factory.mktemp("small"))})
  draft_model.main(config)
  return config


@pytest.mark.parametrize(
  "keep, kept", [(1, [0]), (2, [0, 7]), (3, [0, 4, 7]), (7, [0, 1, 2, 4, 5, 6, 7])]
)
def test_layers_are_kept_at_equal_distances(keep, kept):
  model = specjax.load("gsm8k-7m")
  config, params = cut(model.config, model.params, keep)
  assert config == dataclasses.replace(model.config, layers=keep)
  own = params["params"]
  for i, k in enumerate(kept):
    assert own[f"layer_{i}"] is model.params["params"][f"layer_{k}"]
  assert f"layer_{keep}" not in own and own["embedding"] is model.params["params"]["embedding"]


@pytest.mark.parametrize("keep", [8, 9])
def test_a_target_without_so_many_layers_is_refused(keep):
  model = specjax.load("gsm8k-7m")
  with pytest.raises(ValueError, match=f"`keep` must be between 1 and 7, .*, got {keep}"):
    cut(model.config, model.params, keep)


@pytest.mark.slow
def test_every_exit_learns_as_the_last():
  """The loss of a model with an exit is the mean of it and of the layers below the exit."""
  model, noise = specjax.load("gsm8k-7m"), np.random.default_rng(0)
  config, params = cut(model.config, model.params, 2)
  ids, place = noise.integers(4096, size=(2, 6)), np.arange(6)[None].repeat(2, 0)
  rows = PackedRows(ids.astype(np.int32), place.astype(np.int32), 0 * place, place > 0)
  hidden = noise.normal(size=(2, 3, config.width)).astype(np.float32)
  batch = draft_model.Batch(
    rows, np.array([[0, 2, 4], [1, 2, 0]], np.int32), np.float32([[1, 1, 1], [1, 1, 0]]), hidden
  )
  both, figures = draft_model.loss_of(Transformer(config), params, batch, (1,))
  last, same = draft_model.loss_of(Transformer(config), params, batch)
  below = Transformer(dataclasses.replace(config, layers=1))
  first, _ = draft_model.loss_of(below, params, batch)
  assert float(both) == pytest.approx((float(first) + float(last)) / 2, rel=1e-5)
  assert figures == same and abs(float(first - last)) > 1e-3


@pytest.mark.full
def test_it_learns_and_the_embedding_stays(done):
  out = pathlib.Path(done.out)
  losses = [json.loads(x)["loss"] for x in (out / "metrics.jsonl").read_text().splitlines()]
  assert 0 < np.mean(losses[-10:]) < 0.5 * np.mean(losses[:3])
  report = json.loads((out / "report.json").read_text())
  assert report["layers"] == 1 and 0.3 < report["agreement"] <= 1
  target, small = specjax.load(done.model), specjax.load(f"{done.out}/model")
  for name in ("embedding", "lm_head"):
    if name in target.params["params"]:
      np.testing.assert_array_equal(small.params["params"][name], target.params["params"][name])
  assert small.stop == target.stop


@pytest.mark.slow
def test_it_drafts(done):
  target = specjax.load(done.model)
  prompts = [target.chat(f"{i} pens and 3?") for i in range(4)]
  plain, drafted = (
    Decoder(target, drafter)(prompts, 16)
    for drafter in ("none", f"draft_model-3[{done.out}/model]")
  )
  assert [r.tokens for r in plain] == [r.tokens for r in drafted]
  assert sum(r.passes for r in drafted) < 0.8 * sum(r.passes for r in plain)


def test_a_finished_run_goes_no_further_and_others_are_refused(done):
  draft_model.main(done)
  with pytest.raises(ValueError, match=r"holds a run with points=32 \(now 16\)"):
    draft_model.main(changed(done, points=16))


@pytest.mark.slow
def test_tokens_that_another_draft_model_guesses(done):
  model, other = specjax.load(done.model), specjax.load(f"{done.out}/model")
  texts = [model.chat(f"{i} pens and {j}?") for i, j in ((3, 4), (5, 12))]
  rows = pack([(text, [True] * len(text)) for text in texts], sum(map(len, texts)) + 2)

  def states(of: specjax.Model, ids: list[int]) -> np.ndarray:
    position = jnp.arange(len(ids), dtype=jnp.int32)[None]
    mask = attention_mask(jnp.zeros_like(position), True)
    return Transformer(of.config).apply(of.params, jnp.asarray([ids], jnp.int32), position, mask)[0]

  def best(of: specjax.Model, ids: list[int]) -> np.ndarray:
    return np.asarray(of.target.head(of.params, states(of, ids)).argmax(-1))[0]

  hidden = np.zeros((*rows.tokens.shape, model.config.width), np.float32)
  want = np.zeros(rows.tokens.shape, bool)
  for s, text in enumerate(sorted(texts, key=len, reverse=True)):
    place = rows.segment[0] == s
    hidden[0, place] = states(model, text)[0]
    want[0, place] = best(model, text) == best(other, text)
  real = rows.segment >= 0
  got = draft_model.guessed(model, other, rows, hidden)
  np.testing.assert_array_equal(got[real], want[real])
  assert got[real].any() and not got[real].all()


@pytest.mark.full
def test_a_second_draft_model_learns_what_the_first_does_not_guess(done, tmp_path):
  second = dataclasses.replace(done, out=str(tmp_path), boost=f"{done.out}/model")
  draft_model.main(second)
  shares = [json.loads((pathlib.Path(c.out) / "report.json").read_text()) for c in (done, second)]
  assert shares[1]["left"] < 0.8 and shares[0]["left"] == 1
  target = specjax.load(done.model)
  prompts = [target.chat(f"{i} pens and 3?") for i in range(4)]
  both = f"draft_model-3[{done.out}/model]+draft_model-3[{second.out}/model]"
  plain, drafted = (Decoder(target, drafter)(prompts, 16) for drafter in ("none", both))
  assert [r.tokens for r in plain] == [r.tokens for r in drafted]


@pytest.mark.slow
def test_a_model_of_another_vocabulary_is_refused(done, tmp_path):
  with pytest.raises(ValueError, match=r"boost='lists-3m' has another vocabulary than .*: id 257"):
    draft_model.main(dataclasses.replace(done, out=str(tmp_path), boost="lists-3m"))
