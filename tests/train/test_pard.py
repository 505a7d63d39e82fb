"""Draft models of masks: what a step reads and learns, what they draft, and how they are kept."""

import dataclasses
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cut import cut

import specjax
from specjax import Decoder
from specjax.checkpoints import hf
from specjax.data.packing import PackedRows
from specjax.models.transformer import Transformer, attention_mask
from specjax.train import pard

MASK = 4095


def test_most_later_masks_are_dropped_and_none_stands_without_those_before():
  number, rank = pard.laid_out(10, 5, 0.5, 0.2)
  assert np.bincount(number).tolist() == [0, 5, 3, 2, 2]
  places = [set(rank[number == i].tolist()) for i in range(1, 5)]
  assert all(later <= before for before, later in itertools.pairwise(places))
  assert len(pard.laid_out(10, 1, 0.5, 0.2).number) == 0
  assert len(pard.laid_out(10, 4, 1.0, 0.0).number) == 30


def test_a_mask_says_what_it_says_alone_behind_its_text():
  """Each place and its masks against a pass over the text up to it and so many masks."""
  model, noise = cut(), np.random.default_rng(0)
  T, D = 7, 3
  tokens = noise.integers(4000, size=(1, T)).astype(np.int32)
  segment = np.int32([[0, 0, 0, 0, 1, 1, 1]])
  position = np.int32([[0, 1, 2, 3, 0, 1, 2]])
  trained = np.array([[False, True, True, True, False, True, True]])
  rows = PackedRows(tokens, position, segment, trained)
  network, layout = Transformer(model.config), pard.laid_out(T, D, 0.6, 0.3)
  keys = jax.random.split(jax.random.key(3), 1)
  got = pard.said(network, model.params, rows, keys, layout, MASK)
  order = np.asarray(jnp.argsort(jax.random.uniform(keys[0], (T,))))
  place = np.concatenate([np.arange(T), order[layout.rank]])
  ahead = np.concatenate([np.zeros(T, int), layout.number])
  for r, (at, count) in enumerate(zip(place, ahead, strict=True)):
    learned = at + count + 1 < T and segment[0, at + count + 1] == segment[0, at]
    weight = learned and trained[0, at + count + 1]
    assert float(got.weight[0, r]) == float(weight)
    if not learned:
      continue
    text = tokens[:, : at + 1][segment[:, : at + 1] == segment[0, at]]
    ids = np.concatenate([text, np.full(count, MASK)]).astype(np.int32)[None]
    steps = np.arange(ids.shape[1], dtype=np.int32)[None]
    hidden = network.apply(model.params, ids, steps, attention_mask(0 * steps, True))[0]
    log_p = jax.nn.log_softmax(network.apply(model.params, hidden, method="head")[0, -1])
    np.testing.assert_allclose(got.nats[0, r], -log_p[int(tokens[0, at + count + 1])], rtol=2e-5)


@pytest.fixture(scope="module")
def done(tiny_heads, tmp_path_factory):
  """The options of a finished run, in which the target itself goes on learning."""
  fields = {f.name for f in dataclasses.fields(pard.Config)}
  shared = {k: getattr(tiny_heads, k) for k in fields if hasattr(tiny_heads, k)}
  own = {"start": tiny_heads.model, "depth": 3, "out": str(tmp_path_factory.mktemp("pard"))}
  config = pard.Config(**shared | own)
  pard.main(config)
  return config


@pytest.mark.full
def test_it_learns_and_drafts_in_one_pass_without_changing_a_token(done):
  out = pathlib.Path(done.out)
  losses = [json.loads(x)["loss"] for x in (out / "metrics.jsonl").read_text().splitlines()]
  assert np.mean(losses[-5:]) < 0.9 * losses[0]
  report = json.loads((out / "report.json").read_text())
  model = specjax.load(done.model)
  last = model.config.vocab_size - 1
  assert len(report["held_out"]) == 3 and report["mask"] == last
  raw = json.loads((out / "model" / "config.json").read_text())
  assert raw["pard_token"] == last and raw["spd_type"] == "pard" and "mask_token_id" not in raw
  ids = model.encode("Q: 3 + 4?\nA:")
  for settings in ({}, {"temperature": 0.8, "verifier": "target_only"}):
    plain = Decoder(model, "none", **settings)([ids], 16)[0]
    trees = ("", "/static-2-1") if not settings else ("", "/iid-2-1")
    for nodes, tree in zip(("-4", ""), trees, strict=True):
      drafting = Decoder(model, f"draft_model{nodes}[{out}/model]/masks{tree}", **settings)
      assert drafting([ids], 16)[0].tokens == plain.tokens


def saved(directory: pathlib.Path, mask: int) -> str:
  """The model of one layer as a draft model of masks, which it was not trained for."""
  model = cut()
  hf.save(directory, model.config, model.params, model.tokenizer, stop=model.stop, mask=mask)
  return str(directory)


def test_masks_change_no_token(tmp_path):
  model, name = cut(), saved(tmp_path / "small", MASK)
  ids = model.encode("Q: 3 + 4?\nA:")
  for settings in ({}, {"temperature": 0.8, "verifier": "target_only"}):
    plain, drafted = (
      Decoder(model, drafter, **settings)([ids], 12)[0]
      for drafter in ("none", f"draft_model-4[{name}]/masks")
    )
    assert drafted.tokens == plain.tokens
    assert drafted.passes < plain.passes  # the root's guess is the model's own


def test_a_mask_beyond_the_vocabulary_is_refused(tmp_path):
  name = saved(tmp_path / "small", MASK)
  file = pathlib.Path(name) / "config.json"
  file.write_text(json.dumps(json.loads(file.read_text()) | {"pard_token": MASK + 1}))
  with pytest.raises(ValueError, match=r"pard_token` must be between 0 and 4095, got 4096"):
    specjax.load(name)


@pytest.mark.parametrize(
  "more", ["/confidence-0.3", "/ensemble-0.5[gsm8k-7m]", ""], ids=["length", "two", "no mask"]
)
def test_what_masks_are_not_for_is_refused(more):
  model = cut()
  with pytest.raises(ValueError, match="/masks is for one draft model of the target's vocabulary"):
    Decoder(model, f"draft_model-4[{model.name}]/masks{more}")


def test_another_vocabulary_is_refused(tiny_heads, tmp_path):
  shared = {k: getattr(tiny_heads, k) for k in ("model", "data")}
  config = pard.Config(**shared, out=str(tmp_path), start="lists-3m")
  with pytest.raises(ValueError, match=r"start='lists-3m'.* vocabulary"):
    pard.main(config)
