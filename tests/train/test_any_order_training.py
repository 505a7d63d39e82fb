"""Training of a model of any tokens given any others: its order, its loss, and the script."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.data import lists
from specjax.models.any_order import any_order
from specjax.models.config import Config
from specjax.models.transformer import init
from specjax.train import denoiser as script
from specjax.train.recipe import asked_slots
from specjax.train.recipe.config import Network, Training
from specjax.train.recipe.masking import denoising_loss, filling_order

V, T = 12, 7
CONFIG = Config(
  vocab_size=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp_width=16, causal=False,
  any_order=True,
)  # fmt: skip


def test_ranks_go_from_left_to_right():
  masked = jnp.array([[False, True, True, False, True], [False] * 5])
  assert filling_order(masked).tolist() == [[-1, 0, 1, -1, 2], [-1] * 5]


@pytest.mark.slow
def test_the_loss_of_a_pass_is_that_of_a_pass_for_each_token():
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda x: x * 9 if x.ndim > 1 else x, init(CONFIG, jax.random.key(0)))
  tokens = jnp.asarray(rng.integers(0, V - 1, (2, T)), jnp.int32)
  masked = jnp.asarray(rng.random((2, T)) < 0.6)
  rank, model = filling_order(masked), any_order(CONFIG, V - 1)
  sums = np.zeros(2)
  for b, slot in zip(*np.nonzero(np.asarray(masked)), strict=True):
    known = rank < rank[b, slot]
    read = jnp.where(known, tokens, 0)  # nothing that is not known is read
    sums[b] -= model.draft(params, read, known, rank)[b, slot, tokens[b, slot]]
  logits = model.joint(params, tokens, rank < 0, rank)
  everything = jnp.ones((2, T), bool)

  def loss(logits):
    said = asked_slots.cross_entropy(logits, tokens)
    return denoising_loss(*said, masked, everything, jnp.ones((2, 1)))[0]

  got, gradient = jax.value_and_grad(loss)(logits)
  np.testing.assert_allclose(got, (sums / T).mean(), rtol=1e-5)
  assert np.isfinite(gradient).all()


@pytest.fixture(scope="module")
def options(tmp_path_factory):
  path = tmp_path_factory.mktemp("any_order")
  records = lists.records(0, 64, lengths=(2,), tasks=("copy",))
  (path / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
  return script.Config(
    data=str(path / "data.jsonl"), out=str(path / "run"), words=True, length=40, any_order=True,
    network=Network(16, 1, 2, 2, 8, 16),
    training=Training(batch=8, steps=20, rate=1e-2, warmup=1, save_every=20, devices=1),
  )  # fmt: skip


@pytest.mark.slow
def test_the_script_makes_a_model_that_assd_decodes(options):
  script.main(options)
  lines = (pathlib.Path(options.out) / "metrics.jsonl").read_text().splitlines()
  loss = [json.loads(line)["loss"] for line in lines]
  assert loss[-1] < loss[0]
  model = specjax.load(f"{options.out}/model")
  assert model.config.any_order and not model.config.causal
  (answer,) = specjax.DiffusionDecoder(model, "assd-3/whole")(["copy : Ann Bob ="], 6)
  assert answer.passes <= 6 and len(answer.filling.canvas) > 6


@pytest.mark.parametrize(
  ("other", "words"),
  [({"context": True}, "context=False"), ({"shift": True}, "not shifted"),
   ({"block_length": 4}, "`any_order` must be False"), ({"remat": True},
    r"`remat` must be False for a model of any tokens given any others, got True\.")],
)  # fmt: skip
def test_what_does_not_go_with_it_is_refused(options, tmp_path, other, words):
  with pytest.raises(ValueError, match=words):
    script.main(dataclasses.replace(options, out=str(tmp_path), **other))
