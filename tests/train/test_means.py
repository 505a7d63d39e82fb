"""However a batch is cut into parts, its loss and its gradient are those of the whole batch."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from options import changed

from specjax.heads import HEADS
from specjax.train import (
  acceptance,
  denoiser,
  distill,
  draft_model,
  duo,
  energy,
  filter,
  heads,
  joint,
  judge,
  lm,
  skipping,
)
from specjax.train.recipe import means, reading
from specjax.train.recipe.config import Training

BATCH = 8
RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(BATCH, 5)).astype(np.float32), RNG.normal(size=5).astype(np.float32)
COUNTS = np.arange(BATCH)[:, None] > np.arange(5)  # row 0 counts nothing, row 7 all


def squares(params, frozen, batch, key):
  """The mean of the squares that count, and the square of their mean; a metric over rows."""
  x, counts = batch
  each, weight = x * params["w"][None], counts.astype(jnp.float32)
  mean = (each * weight).sum() / jnp.maximum(weight.sum(), 1)
  square = (each**2 * weight).sum() / jnp.maximum(weight.sum(), 1)
  return means.over(weight, {"a": square, "b": mean}), {"rows": each.sum(1).mean()}


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_the_loss_of_parts_is_that_of_sums(parts):
  def total(terms):
    return terms["a"] + 3 * terms["b"] ** 2

  gradient = jax.jit(means.gradient(squares, total, parts))
  (loss, metrics), grads = gradient({"w": W}, (), (X, COUNTS), jax.random.key(0))
  x, w = X.astype(np.float64), W.astype(np.float64)
  n, each = COUNTS.sum(), x * w * COUNTS
  mean = each.sum() / n
  np.testing.assert_allclose(loss, (each**2).sum() / n + 3 * mean**2, rtol=1e-5)
  np.testing.assert_allclose(metrics["rows"], (x * w).sum() / BATCH, rtol=1e-5)
  want = (2 * x * each).sum(0) / n + 6 * mean * (x * COUNTS).sum(0) / n
  np.testing.assert_allclose(grads["w"], want, rtol=1e-4)


class Captured(Exception):
  """A trainer has come to its fit."""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
  """Sums in words, of which every second answer is one number."""
  records = [
    {"question": f"{a} pens and {b}?", "answer": f"{a} + {b} = {a + b}." if a % 2 else f"{a + b}",
     "wrong": [[0, 1]] if b % 2 else []}
    for a in range(6) for b in range(6)
  ]  # fmt: skip
  path = tmp_path_factory.mktemp("uneven") / "data.jsonl"
  path.write_text("".join(json.dumps(x) + "\n" for x in records))
  return str(path)


@pytest.fixture
def settings(request, tiny_heads, uneven, tmp_path):
  """The settings of a trainer; each is made when it is asked for, since it may need a model."""
  small = Training(batch=BATCH, steps=3, devices=1)
  answering = {"model": tiny_heads.model, "data": uneven, "out": str(tmp_path), "training": small}
  drafting = answering | {"held_out": 8, "max_new_tokens": 8, "length": 64}
  lists = {"data": "lists:1:40", "out": str(tmp_path), "training": small}

  def head(kind, **more):
    return heads.Config(head=HEADS[kind][1](), answer_field="answer", points=32, **drafting, **more)

  def read(kind, **more):
    return kind(**answering, held_out=8, length=64, **more)

  def started(**more):
    model = request.getfixturevalue("list_denoiser")
    return denoiser.Config(start=model, length=32, **lists, **more)

  return {
    "heads": lambda: (heads, head("medusa", noise=0.2)),
    "heads within": lambda: (heads, head("hydra")),
    "frames": lambda: (heads, head("ctc")),
    "joint": lambda: (joint, changed(request.getfixturevalue("tiny_joint"), out=str(tmp_path))),
    "draft_model": lambda: (draft_model, draft_model.Config(keep=1, points=8, **drafting)),
    "acceptance": lambda: (acceptance, acceptance.Config(draft=tiny_heads.model, **drafting)),
    "judge": lambda: (judge, judge.Config(marked=True, held_out=8, length=64, **answering)),
    "skipping": lambda: (skipping, read(skipping.Config)),
    "duo, mlps": lambda: (duo, read(duo.Config)),
    "duo, routers": lambda: (duo, read(duo.Config)),
    "lm": lambda: (lm, lm.Config(start=tiny_heads.model, data=uneven, out=str(tmp_path), length=24,
                                 training=small)),
    "lm, exits": lambda: (lm, lm.Config(start=tiny_heads.model, data=uneven, out=str(tmp_path),
                                        length=24, exit_loss=1.0, layer_dropout=0.3, exit_every=1,
                                        training=small)),
    "denoiser": lambda: (denoiser, started()),
    "denoiser, blocks": lambda: (denoiser, started(block_length=4)),
    "distill": lambda: (distill, distill.Config(
      model=request.getfixturevalue("list_denoiser"), new=6, block=3, answer_batch=8, questions=16,
      **lists)),
    "filter": lambda: (filter, filter.Config(
      model=request.getfixturevalue("list_denoiser"), questions=16, held_out=8, new=6, block=3,
      answer_batch=8, **lists)),
    "energy": lambda: (energy, energy.Config(
      model=request.getfixturevalue("list_denoiser"), held_out=8, new=6, hidden=4, **lists)),
  }  # fmt: skip


NAMES = ("heads", "heads within", "frames", "joint", "draft_model", "acceptance", "judge",
         "skipping", "duo, mlps", "duo, routers", "lm", "lm, exits", "denoiser",
         "denoiser, blocks", "distill", "filter", "energy")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  [pytest.param(x, marks=() if x in ("heads", "lm", "skipping") else pytest.mark.full)
   for x in NAMES],
)  # fmt: skip
def test_every_trainers_loss_is_that_of_the_whole_batch(settings, monkeypatch, name):
  module, config = settings[name]()
  found = []

  def fit(loss, params, batch, training, directory, **more):
    found.append((loss, params, batch, more))
    if len(found) > (name == "duo, routers"):
      raise Captured
    return params

  monkeypatch.setattr(module, "fit", fit)
  if module is distill:
    monkeypatch.setattr(distill, "is_right", lambda model, asked, rows: np.ones(len(asked), bool))
  with pytest.raises(Captured):
    module.main(config)
  loss, params, batch, more = found[-1]
  key, first = jax.random.key(5), jax.tree.map(jnp.asarray, batch(0))
  drawn = more["draw"](first, key) if more.get("draw") else first
  # What a weight begins with may hide what it does: a router's or an update's is 0.
  keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(params))))
  params = jax.tree.map(lambda x: x + 0.02 * jax.random.normal(next(keys), x.shape), params)

  def of(parts):
    gradient = means.gradient(loss, more.get("total", means.added), parts)
    return jax.jit(gradient)(params, more.get("frozen", ()), drawn, key)

  (want, figures), gradient = of(1)
  assert want > 0
  size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradient))
  for parts in (2, 8):
    (got, metrics), cut = of(parts)
    np.testing.assert_allclose(got, want, rtol=2e-5)
    for k, x in figures.items():
      np.testing.assert_allclose(metrics[k], x, rtol=1e-4, atol=1e-6)
    for x, y in zip(*map(jax.tree.leaves, (cut, gradient)), strict=True):
      np.testing.assert_allclose(x, y, atol=2e-4 * size)


def test_the_penalty_is_that_of_the_whole_batch():
  total = reading.penalised(reading.Config("m", "d", "o", keep=0.5, penalty=8.0))
  assert total({"entropy": 1.0, "kept": 0.75}) == 1.5
