"""The shared loop: steps, checkpoints, metrics, what stops it and what it refuses."""

import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from specjax.train.recipe import fit as fitting
from specjax.train.recipe.config import Training
from specjax.train.recipe.fit import batches, fit, loop
from specjax.train.recipe.run import claim, count_lines, keep_lines


class Data(NamedTuple):
  x: np.ndarray
  y: np.ndarray


DATA = Data(np.arange(10, dtype=np.float32), np.arange(10, dtype=np.int32) * 2)


@jax.jit
def step(state, batch):
  state = {"sum": state["sum"] * 0.5 + batch.x.sum(), "count": state["count"] + 1}
  return state, {"loss": state["sum"], "gradient_norm": 1.0 / batch.x.min()}


def initial():
  return {"sum": jnp.zeros(()), "count": jnp.zeros((), jnp.int32)}


def lines(directory) -> list[dict]:
  records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
  return [{k: v for k, v in r.items() if k not in ("seconds", "waited")} for r in records]


def saved_steps(directory) -> list[int]:
  with ocp.training.Checkpointer(directory / "checkpoints") as checkpoints:
    return [c.step for c in checkpoints.checkpoints]


def batch(i: int) -> Data:
  return Data(np.array([i + 1, i + 2], np.float32), np.zeros(2, np.int32))


def test_resumed_runs_are_those_that_never_stopped(tmp_path):
  """Stopped by an error in a batch, with half a line of metrics left behind."""
  whole = loop(step, initial(), batch, Training(steps=9, save_every=2), tmp_path / "a")

  def failing(i: int) -> Data:
    if i == 5:
      raise RuntimeError("power cut")
    return batch(i)

  for _ in range(2):  # a run that stops again before its next checkpoint loses nothing either
    with pytest.raises(RuntimeError, match="power cut"):
      loop(step, initial(), failing, Training(steps=9, save_every=2), tmp_path / "b")
    with (tmp_path / "b" / "metrics.jsonl").open("a") as sink:
      sink.write('{"step": 5, "lo')
  resumed = loop(step, initial(), batch, Training(steps=9, save_every=2), tmp_path / "b")
  assert jax.tree.map(float, resumed) == jax.tree.map(float, whole)
  assert lines(tmp_path / "a") == lines(tmp_path / "b")
  assert [r["step"] for r in lines(tmp_path / "b")] == list(range(9))
  assert saved_steps(tmp_path / "b") == [8, 9]


@pytest.mark.parametrize(("every", "looks"), [(1, range(7)), (3, (0, 2, 5, 6)), (50, (0, 6))])
def test_the_weights_that_were_judged_best_come_back(tmp_path, every, looks):
  """The weight walks down past -2.6, and the nearest stop at which somebody looks is best."""

  def loss(params, frozen, batch, key):
    return params["w"].sum(), {}

  def judge(params, frozen, held_out, key):
    return jnp.abs(params["w"] - held_out).sum() + frozen

  training = Training(steps=7, batch=2, devices=1, save_every=3, rate=1.0, warmup=0, clip=1e9)
  options = {"frozen": jnp.float32(2), "held_out": jnp.float32(-2.6), "judge": judge,
             "judge_every": every}  # fmt: skip
  start = {"w": jnp.zeros(1)}
  last = fit(loss, start, batch, training, tmp_path / "plain")
  best = fit(loss, start, batch, training, tmp_path / "judged", **options)
  walk, optimizer, w = [], training.transformation(), start
  moments = optimizer.init(w)
  for _ in range(7):
    updates, moments = optimizer.update({"w": jnp.ones(1)}, moments, w)
    w = jax.tree.map(jnp.add, w, updates)
    walk.append(float(w["w"][0]))
  judged = {i: abs(walk[i] + 2.6) + 2 for i in looks}
  assert best["w"] == pytest.approx([walk[min(judged, key=lambda i: judged[i])]], abs=1e-6)
  assert last["w"] == pytest.approx([walk[-1]], abs=1e-6)
  newest = [judged[max(j for j in looks if j <= i)] for i in range(7)]
  said = [x["held_out"] for x in lines(tmp_path / "judged")]
  assert said == pytest.approx(newest, abs=1e-6)


def test_parts_of_the_weights_have_rates_of_their_own(tmp_path):
  """The first step of Adam is as long as the rate, whatever the gradient is."""

  def loss(params, frozen, batch, key):
    return params["slow"] * 3 + params["fast"]["w"].sum() * 0.1 + params["fixed"], {}

  start = {"slow": jnp.zeros(()), "fast": {"w": jnp.zeros(2)}, "fixed": jnp.zeros(())}
  training = Training(steps=1, batch=2, devices=1, rate=0.1, warmup=0, clip=1e9)
  got = fit(loss, start, batch, training, tmp_path, rates={"slow": 1.0, "fast": 4.0, "fixed": 0.0})
  assert float(got["slow"]) == pytest.approx(-0.1, rel=1e-4) and float(got["fixed"]) == 0
  np.testing.assert_allclose(got["fast"]["w"], -0.4, rtol=1e-4)


def test_a_finished_run_does_nothing_more(tmp_path):
  first = loop(step, initial(), batch, Training(steps=3, save_every=5), tmp_path)
  again = loop(step, initial(), pytest.fail, Training(steps=3, save_every=5), tmp_path)
  assert jax.tree.map(float, first) == jax.tree.map(float, again)
  assert len(lines(tmp_path)) == 3


@pytest.mark.parametrize("bad", [("loss", np.nan), ("loss", np.inf), ("gradient_norm", np.nan)])
def test_non_finite_metrics_stop_and_keep_the_last_good_checkpoint(tmp_path, bad):
  def breaking(state, data):
    state, metrics = step(state, data)
    return state, metrics | ({bad[0]: jnp.float32(bad[1])} if int(state["count"]) == 4 else {})

  with pytest.raises(FloatingPointError, match=rf"{bad[0]}={bad[1]} at step 3; the last good"):
    loop(breaking, initial(), batch, Training(steps=9, save_every=2), tmp_path)
  assert saved_steps(tmp_path) == [2]
  assert len(lines(tmp_path)) == 3
  state = loop(step, initial(), batch, Training(steps=4, save_every=2), tmp_path)
  assert int(state["count"]) == 4


def test_batches_are_a_function_of_seed_and_step():
  one, other = batches(DATA, Training(batch=5)), batches(DATA, Training(batch=5, seed=1))
  assert isinstance(one(0), Data)
  for i in (7, 0, 3):
    np.testing.assert_array_equal(one(i).x, batches(DATA, Training(batch=5))(i).x)
    np.testing.assert_array_equal(one(i).x * 2, one(i).y)
  assert not np.array_equal(one(0).x, other(0).x)
  for epoch in range(3):  # each epoch holds every row once, in an order of its own
    rows = np.concatenate([one(2 * epoch).x, one(2 * epoch + 1).x])
    assert sorted(rows) == sorted(DATA.x)
  assert not np.array_equal(one(0).x, one(2).x)


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_batch_have_the_gradient_of_the_whole(parts, tmp_path):
  def loss(params, frozen, batch, key):
    error = ((params["w"] * batch.x + frozen - batch.y.astype(jnp.float32)) ** 2).mean()
    return error, {"error": error}

  def trained(**options):
    training = Training(steps=5, batch=8, warmup=1, rate=0.1, **options)
    directory = tmp_path / str(options)
    params = fit(loss, {"w": jnp.ones(())}, batches(DATA, training), training, directory,
                 frozen=jnp.float32(0.5))  # fmt: skip
    return params["w"], lines(directory)

  whole, several = trained(devices=1), trained(devices=2, parts=parts)
  np.testing.assert_allclose(whole[0], several[0], rtol=1e-5)
  for ours, theirs in zip(whole[1], several[1], strict=True):
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize(
  ("options", "message"),
  [({"parts": 3}, r"`parts` must divide batch=8, got 3\."),
   ({"parts": 4, "devices": 4}, r"`devices` must be at most 8 and divide batch=8, got 4\.")],
)  # fmt: skip
def test_parts_that_do_not_divide_a_batch_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    Training(batch=8, **options).shardings()


def test_devices_that_hold_parts_of_the_weights_train_as_one(tmp_path, monkeypatch):
  def loss(params, frozen, batch, key):
    guess = jnp.tanh(batch.x[:, None] @ params["w"]) @ params["v"] + params["b"]
    return ((guess - batch.y.astype(jnp.float32)) ** 2).mean(), {}

  params = {"w": jnp.ones((1, 16)) / 4, "v": jnp.ones(16), "b": jnp.ones(())}
  kept = {}
  inner = fitting.loop

  def seen(step, state, *others):
    kept["before"] = jax.tree.map(lambda x: x.sharding, state)
    kept["after"] = inner(step, state, *others)
    return kept["after"]

  monkeypatch.setattr(fitting, "loop", seen)
  found = {}
  for fsdp in (False, True):
    training = Training(steps=4, batch=8, warmup=1, rate=0.1, devices=8, fsdp=fsdp)
    found[fsdp] = fit(loss, params, batches(DATA, training), training, tmp_path / str(fsdp))
  for ours, theirs in zip(*map(jax.tree.leaves, found.values()), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
  assert jax.tree.map(lambda x: x.sharding, kept["after"]) == kept["before"]
  for x in jax.tree.leaves(kept["after"]):
    there = {shard.data.shape for shard in x.addressable_shards}
    assert there == {{(1, 16): (1, 2), (16,): (2,)}.get(x.shape, ())}
  again = Training(steps=4, batch=8, warmup=1, rate=0.1, devices=2)  # a checkpoint on another mesh
  one = fit(loss, params, pytest.fail, again, tmp_path / "True")
  np.testing.assert_array_equal(one["w"], found[True]["w"])


@pytest.mark.parametrize("size", [0, 11])
def test_batches_larger_than_the_data_are_refused(size):
  with pytest.raises(ValueError, match=f"`batch` must be between 1 and 10, .*, got {size}"):
    batches(DATA, Training(batch=size))


def test_adamw_warms_up_clips_and_decays_matrices_only():
  params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
  optimizer = Training(rate=0.1, steps=10, warmup=2, decay=0.5).transformation()
  state = optimizer.init(params)
  zero = jax.tree.map(jnp.zeros_like, params)
  updates, state = optimizer.update(zero, state, params)
  assert not any(np.any(x) for x in jax.tree.leaves(updates))  # the first rate is 0
  updates, state = optimizer.update(zero, state, params)
  np.testing.assert_allclose(updates["w"], -0.05 * 0.5)
  assert not np.any(updates["b"])


def test_lines_are_counted_and_cut_where_they_end(tmp_path):
  path = tmp_path / "a.jsonl"
  assert count_lines(path) == 0
  keep_lines(path, 0)
  path.write_text("one\ntwo\nthr")
  assert count_lines(path) == 2
  keep_lines(path, 2)
  assert path.read_text() == "one\ntwo\n"
  keep_lines(path, 1)
  assert path.read_text() == "one\n"


@dataclasses.dataclass(frozen=True)
class Options:
  out: str = "x"
  data: str = "here"
  fields: tuple[str, str] = ("a", "b")
  width: int = 32
  training: Training = dataclasses.field(default_factory=Training)


def test_a_directory_belongs_to_one_run(tmp_path):
  claim(tmp_path, Options(), [1, 2])
  claim(tmp_path, Options(), [1, 2])
  claim(tmp_path, Options("y", "there", training=Training(save_every=2)), [1, 2])
  with pytest.raises(ValueError, match=r"holds a run with width=32 \(now 64\): continue it"):
    claim(tmp_path, Options(width=64), [1, 2])
  with pytest.raises(ValueError, match=r"holds a run with steps=1000 \(now 5\)"):
    claim(tmp_path, Options(training=Training(steps=5)), [1, 2])
  for content in ([1, 3], (np.arange(2),)):
    with pytest.raises(ValueError, match="holds a run with data_digest="):
      claim(tmp_path, Options(), content)
  claim(tmp_path, Options(), [1, 2])
  claim(tmp_path, Options(training=Training(steps=2000)), [1, 2])  # a run may become longer
  with pytest.raises(ValueError, match=r"holds a run with steps=2000 \(now 1000\)"):
    claim(tmp_path, Options(), [1, 2])


def test_muon_steps_matrices_along_their_polar_factor():
  """A first step is U V^T of the gradient, as NumPy has it; vectors and tables step by AdamW."""
  rng = np.random.default_rng(0)
  shapes = {"layer": {"out": (6, 4), "norm": (4,)}, "lm_head": (9, 4)}
  params = jax.tree.map(jnp.ones, shapes, is_leaf=lambda x: isinstance(x, tuple))
  grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)
  moves = {}
  for name in ("adamw", "muon"):
    training = Training(rate=0.1, steps=10, warmup=0, decay=0.5, clip=1e9, optimizer=name)
    optimizer = training.transformation()
    moves[name] = jax.jit(optimizer.update)(grads, optimizer.init(params), params)[0]
  for found, want in zip(*(jax.tree.leaves((x["layer"]["norm"], x["lm_head"])) for x in
                           (moves["muon"], moves["adamw"])), strict=True):  # fmt: skip
    np.testing.assert_allclose(found, want, rtol=1e-5)
  u, _, v = np.linalg.svd(np.asarray(grads["layer"]["out"], np.float64), full_matrices=False)
  step = -np.asarray(moves["muon"]["layer"]["out"]) / 0.1 - 0.5  # without its decay
  polar = u @ v
  assert (step * polar).sum() / np.linalg.norm(step) / np.linalg.norm(polar) > 0.97
  np.testing.assert_allclose(np.sqrt((step**2).mean()), 0.2, rtol=0.25)
