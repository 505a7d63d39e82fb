"""Training a draft head: what it learns from, what it is told, and how its hits are counted."""

import dataclasses
import functools
import json
import pathlib
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from options import changed

import specjax
from specjax.base import Features
from specjax.checkpoints import heads as checkpoint
from specjax.data.packing import pack
from specjax.data.sources import open_source
from specjax.heads import HEADS
from specjax.heads.base import LossWeights
from specjax.heads.medusa import MedusaConfig, medusa
from specjax.heads.parallel import Parallel
from specjax.models.config import Config as ModelConfig
from specjax.models.transformer import Transformer, attention_mask, target
from specjax.train import heads
from specjax.train.recipe import answers, losses
from specjax.train.recipe.answers import Asked, answered, ask
from specjax.train.recipe.draft_positions import PositionSource

SMALL = ModelConfig(vocab_size=20, width=8, layers=1, heads=1, kv_heads=1, head_dim=4, mlp_width=8)
SOME = np.array([0, 1, 3, 4, 7, 8, 11, 12, 13, 15, 18, 19], np.int32)


@functools.cache
def objective_of(reduced: bool):
  """(Objective, params, target params, a batch, states and f32 logits [B, M, W] of every depth)."""
  vocabulary = SOME if reduced else None
  rng = np.random.default_rng(0)
  documents = [
    (rng.integers(0, 20, n).tolist(), (rng.random(n) < 0.7).tolist()) for n in range(2, 16)
  ]
  rows = pack(documents, 15)
  hidden = rng.normal(size=(*rows.tokens.shape, 8)).astype(np.float16)
  batch = PositionSource(rows, Features(hidden), 3, 6, 0).sample(np.arange(4), 0)
  objective = heads.Objective(medusa(target(SMALL), MedusaConfig(3)), vocabulary)
  target_params = {"params": {"embedding": jnp.asarray(rng.normal(size=(20, 8)), jnp.float32)}}
  params = objective.head.init(jax.random.key(0), target_params, vocabulary)
  noise = jax.tree.map(
    lambda x: x + jnp.asarray(rng.normal(size=x.shape) / 3, jnp.float32), params["params"]
  )
  params = params | {"params": noise}

  @jax.jit
  def guesses(params, examples):
    states = objective.states(params, target_params, examples)
    return states, [
      objective.head.read(params, target_params, s, d) for d, s in enumerate(states, 1)
    ]

  told = jax.tree.map(np.asarray, guesses(params, batch.examples))
  return objective, params, target_params, batch, *told


REDUCED = pytest.mark.parametrize("reduced", [False, True], ids=["all tokens", "reduced"])


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def points(objective, batch, d: int):
  """(b, m, label in the draft vocabulary or None) where depth d is trained."""
  ids = batch.labels[:, :, d - 1]
  for b, m in zip(*np.nonzero(batch.weight[:, :, d - 1]), strict=True):
    yield b, m, int(place) if (place := objective.place[ids[b, m]]) >= 0 else None


@pytest.mark.parametrize(
  ("weights", "within", "units"),
  [
    ((0.5, 2.0, 0.25, 0.6), 0, 0), ((1.0, 0.0, 0.0, 0.0), 0, 0), ((1.0, 0.5, 0.0, 1.0), 9, 0),
    ((1.0, 0.5, 0.0, 0.8), 0, 0.002), ((1.0, 0.5, 0.0, 0.8), 14, 0.0002),
  ],
)  # fmt: skip
@REDUCED
def test_the_loss_is_that_of_a_plain_loop(reduced, weights, within, units):
  """Also where a depth learns only from the positions whose earlier tokens were nearly guessed, or
  where the target is sure of all tokens up to its own."""
  objective, params, target_params, batch, states, logits = objective_of(reduced)
  numbers, weights = weights, losses.chosen(weights, LossWeights(within=within))
  weights.units = units
  call = jax.jit(objective.loss, static_argnums=3)
  total, metrics = call(params, target_params, batch, weights)
  ids = params.get("vocabulary", np.arange(20))
  matrix = np.asarray(target_params["params"]["embedding"])[ids]
  hidden = batch.examples.features.hidden.astype(np.float64)
  expected, reached = 0.0, set(np.ndindex(batch.weight.shape[:2]))

  def sure(b, m, d):
    at = batch.examples.at[b, m] + d
    label = objective.place[batch.examples.tokens[b, min(at + 1, hidden.shape[1] - 1)]]
    own = hidden[b, min(at, hidden.shape[1] - 1)]
    return label >= 0 and np.exp(log_softmax(matrix @ own))[label] > units

  for d in (1, 2, 3):
    if units:
      reached = {(b, m) for b, m in reached if all(sure(b, m, i) for i in range(d + 1))}
    terms, right = [], []
    for b, m, label in points(objective, batch, d):
      if label is None:
        continue
      # The token d + 1 after the position is the target's to say d after it.
      own, log_probs = hidden[b, batch.examples.at[b, m] + d], log_softmax(logits[d - 1][b, m])
      assert batch.labels[b, m, d - 1] == batch.examples.tokens[b, batch.examples.at[b, m] + d + 1]
      error = np.abs(states[d - 1][b, m] - own)
      smooth = np.where(error < 1, error**2 / 2, error - 0.5).mean()
      teacher = np.exp(log_softmax(matrix @ own))
      if (b, m) in reached:
        terms.append((-log_probs[label], -(teacher * log_probs).sum(), smooth))
      right.append(log_probs.argmax() == label)
    assert (len(terms) < len(right)) == (units > 0 or (within > 0 and d > 1))
    assert terms or (units and d > 1)
    for b, m in reached.copy() if within else ():
      label = objective.place[batch.labels[b, m, d - 1]]
      if label not in np.argsort(-logits[d - 1][b, m])[:within]:
        reached.remove((b, m))
    if terms:
      expected += weights.decay ** (d - 1) * np.mean(terms, 0) @ numbers[:3]
    np.testing.assert_allclose(metrics[f"accuracy_{d}"], np.mean(right), rtol=1e-5)
  np.testing.assert_allclose(total, expected, rtol=1e-4)
  assert metrics["loss"] == total


def test_a_head_says_what_of_its_states_is_like_the_targets():
  objective, params, target_params, batch, states, _ = objective_of(False)

  class Scaled(Parallel):
    def feature(self, state, d):
      return d * state

  own = heads.Objective(Scaled(**vars(objective.head)), None)
  weights = LossWeights(hard=0.0, feature=1.0, decay=1.0)
  total, _ = jax.jit(own.loss, static_argnums=3)(params, target_params, batch, weights)
  expected = 0.0
  for d in (1, 2, 3):
    kept = [(b, m) for b, m, _ in points(own, batch, d)]
    wanted = [batch.examples.features.hidden[b, batch.examples.at[b, m] + d] for b, m in kept]
    error = np.abs([d * states[d - 1][b, m] for b, m in kept] - np.float64(wanted))
    expected += np.where(error < 1, error**2 / 2, error - 0.5).mean()
  np.testing.assert_allclose(total, expected, rtol=1e-4)


@REDUCED
def test_hits_are_those_of_a_plain_loop(reduced):
  objective, params, target_params, batch, _, logits = objective_of(reduced)
  hits, counts = jax.jit(objective.hits)(params, target_params, batch)
  outside = 0
  for d in (1, 2, 3):
    want, count = np.zeros(10, int), 0
    for b, m, label in points(objective, batch, d):
      count, outside = count + 1, outside + (label is None)  # a miss, whatever was guessed
      want += np.argsort(-logits[d - 1][b, m])[:10] == label
    np.testing.assert_array_equal(hits[d - 1], want)
    assert counts[d - 1] == count > 0
  assert (outside > 0) == reduced


def test_noise_is_on_what_the_head_sees_and_a_function_of_its_key():
  objective, params, target_params, batch, *_ = objective_of(False)
  call = jax.jit(objective.loss, static_argnums=(3, 4))
  plain, first, again, other, little = (
    float(call(params, target_params, batch, LossWeights(), noise, jax.random.key(key))[0])
    for noise, key in ((0.0, 1), (0.5, 1), (0.5, 1), (0.5, 2), (1e-2, 1))
  )
  assert first == again and len({plain, first, other, little}) == 4
  assert abs(little - plain) < 0.1 * abs(first - plain)


@pytest.fixture(scope="module")
def run(tiny_heads, tmp_path_factory):
  config = changed(tiny_heads, out=str(tmp_path_factory.mktemp("heads") / "run"))
  heads.main(config)
  return config


@pytest.fixture
def like(run, tmp_path):
  """Settings of a run in another directory, from the answers and states of the first."""

  def settings(out: str, **change):
    return changed(
      run, out=str(tmp_path / out), answers=f"{run.out}/answers.jsonl",
      features=f"{run.out}/features", **change,
    )  # fmt: skip

  return settings


def read_jsonl(path) -> list[dict]:
  with open(path) as file:
    return [json.loads(line) for line in file]


def metrics_of(config) -> list[dict]:
  return [
    {k: v for k, v in record.items() if k not in ("seconds", "waited")}
    for record in read_jsonl(f"{config.out}/metrics.jsonl")
  ]


def report_of(config) -> dict:
  with open(f"{config.out}/report.json") as file:
    return json.load(file)


def assert_decodes_like_plain(config) -> None:
  """The same text in fewer passes."""
  model = specjax.load(config.model)
  drafter = f"medusa[{config.out}/model]"
  prompts = [model.chat("3 pens and 4?"), model.chat("11 figs and 2?")]
  plain = specjax.generate(model, prompts, max_new_tokens=20)
  ours = specjax.generate(model, prompts, drafter=drafter, max_new_tokens=20)
  assert [r.tokens for r in ours] == [r.tokens for r in plain]
  assert sum(r.passes for r in ours) < sum(r.passes for r in plain)


@pytest.mark.slow
def test_loss_falls_and_the_export_decodes_the_same_text_in_fewer_forwards(run):
  metrics = metrics_of(run)
  assert len(metrics) == run.training.steps
  assert metrics[-1]["loss"] < 0.7 * metrics[0]["loss"]
  assert_decodes_like_plain(run)


def test_answers_are_the_targets_own(run):
  model = specjax.load(run.model)
  answers = read_jsonl(f"{run.out}/answers.jsonl")
  questions = read_jsonl(run.data)
  assert [a["prompt"] for a in answers] == [model.chat(q["question"]) for q in questions]
  plain = specjax.generate(model, [a["prompt"] for a in answers[40:42]], max_new_tokens=16)
  assert [a["answer"] for a in answers[40:42]] == [r.tokens for r in plain]


@pytest.mark.slow
def test_hit_rates_are_those_of_each_document_alone(run, final_state):
  model, params = specjax.load(run.model), final_state(run.out)["best"]
  depth = run.head.depth
  hits, totals = np.zeros((depth, 10)), np.zeros(depth)
  for record in read_jsonl(f"{run.out}/answers.jsonl")[: run.held_out]:
    prompt, ids = record["prompt"], record["prompt"] + record["answer"]
    position = jnp.arange(len(ids))[None]
    mask = attention_mask(jnp.zeros_like(position), True)
    hidden, _ = Transformer(model.config).apply(model.params, jnp.asarray([ids]), position, mask)
    hidden = np.asarray(hidden[0])
    for d in range(1, depth + 1):
      x = hidden @ params["block_0"][d - 1].T + params["bias_0"][d - 1]
      order = np.argsort(-(hidden + x / (1 + np.exp(-x))) @ params["lm_head"][d - 1].T, -1)[:, :10]
      # Drafting begins before the prompt's last token: its successor is the first of the answer.
      for t in range(len(prompt) - 2, len(ids) - d - 1):
        totals[d - 1] += 1
        hits[d - 1] += order[t] == ids[t + d + 1]
  report, loaded = report_of(run), checkpoint.load(f"{run.out}/model", model.config)
  np.testing.assert_allclose(report["hit_rates"], hits / totals[:, None], atol=0.01)
  assert report["head"] == "medusa" and totals.min() > 100
  assert report["parameters"] == sum(x.size for x in jax.tree.leaves(params))
  assert [int(n) for n in report["expected_tokens_per_pass"]] == [4, 8]
  assert len(loaded.choices) == run.nodes - 1
  np.testing.assert_array_equal(loaded.hit_rates, report["hit_rates"])


@pytest.mark.parametrize("shared", [False, True])
def test_before_training_every_head_is_the_lm_head(like, shared, monkeypatch, final_state):
  """One step of rate 0 (warm-up starts there) leaves the heads as they were made."""
  config = like("out", steps=1, head=MedusaConfig(3, blocks=2, shared=shared))
  model = specjax.load(config.model)
  before = jax.tree.map(np.array, model.params)
  monkeypatch.setattr(answers, "load", lambda name, dtype, weights, template: model)
  heads.main(config)

  params = final_state(config.out)["params"]
  blocks = {"block_0", "bias_0", "block_1", "bias_1"}
  assert params.keys() == blocks | (set() if shared else {"lm_head"})
  assert not any(params[name].any() for name in blocks)
  if not shared:
    for matrix in params["lm_head"]:
      np.testing.assert_array_equal(matrix, before["params"]["embedding"])
  for ours, theirs in zip(*map(jax.tree.leaves, (before, model.params)), strict=True):
    np.testing.assert_array_equal(ours, theirs)  # the target is frozen


@pytest.mark.slow
def test_eight_devices_share_a_batch_and_the_loss_can_be_chosen(like):
  one, eight = (like(f"{n}", steps=4, warmup=1, devices=n) for n in (1, 8))
  twice = like("twice", steps=1, loss=(2.0, 0.0, 0.0, 0.8))
  for config in (one, eight, twice):
    heads.main(config)
  losses = [m["loss"] for m in metrics_of(one)]
  assert losses[3] < losses[0]
  for ours, theirs in zip(metrics_of(one), metrics_of(eight), strict=True):
    assert ours == pytest.approx(theirs, rel=1e-4)
  rates = (report_of(config)["hit_rates"] for config in (one, eight))
  np.testing.assert_allclose(*rates, atol=0.01)
  assert metrics_of(twice)[0]["loss"] == pytest.approx(2 * losses[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.full(but=["medusa"])
@pytest.mark.parametrize("name", ["medusa", "eagle3"])
def test_states_of_the_step_train_like_those_on_disk(tiny_heads, like, tmp_path, name):
  change = {"steps": 3, "warmup": 1, "head": HEADS[name][1]()}
  answered = f"{like('x').answers}"
  stored = changed(tiny_heads, out=str(tmp_path / "stored"), answers=answered, **change)
  online = changed(
    tiny_heads, out=str(tmp_path / "online"), answers=answered, online=True, devices=4, **change
  )
  for config in (stored, online):
    heads.main(config)
  assert (tmp_path / "stored/features").exists() and not (tmp_path / "online/features").exists()
  for ours, theirs in zip(metrics_of(stored), metrics_of(online), strict=True):
    assert ours == pytest.approx(theirs, rel=0.02, abs=0.01)  # on disk they have 11 bits
  rates = (report_of(config)["hit_rates"] for config in (stored, online))
  np.testing.assert_allclose(*rates, atol=0.02)


@pytest.mark.slow
@pytest.mark.full(but=["False"])
@pytest.mark.parametrize("online", [False, True])
def test_a_target_in_bfloat16_trains_weights_in_float32(run, tmp_path, final_state, online):
  """The loss follows that of float32, and small steps are not lost to rounding."""
  config = changed(
    run, out=str(tmp_path), answers=f"{run.out}/answers.jsonl", dtype="bfloat16", online=online,
  )  # fmt: skip
  heads.main(config)
  ours, theirs = ([x["loss"] for x in metrics_of(c)] for c in (config, run))
  np.testing.assert_allclose(ours, theirs, rtol=0.03, atol=0.02)
  state = final_state(config.out)
  leaves = jax.tree.leaves([state["params"], state["optimizer"]])
  assert all(x.dtype == np.float32 for x in leaves if np.issubdtype(x.dtype, np.floating))
  if not online:
    kept = np.load(f"{config.out}/features/train/hidden.npy", mmap_mode="r")
    assert kept.dtype == np.uint16  # bfloat16, bit for bit
  loaded = specjax.load(run.model, jnp.bfloat16)
  prompts = [loaded.chat("3 pens and 4?")]
  plain = specjax.generate(loaded, prompts, max_new_tokens=12)
  drafted = specjax.generate(
    loaded, prompts, drafter=f"medusa[{config.out}/model]", max_new_tokens=12
  )
  assert sum(r.passes for r in drafted) < sum(r.passes for r in plain)


@pytest.mark.slow
def test_a_loss_of_ones_own_trains_a_head_and_its_weight_is_read(like, monkeypatch):
  monkeypatch.setitem(losses.TERMS, "twice", lambda x, weight: 2 * losses.hard(x, weight))
  own, hard = (
    like("own", steps=2, loss=("hard=0", "twice=1.5", "decay=0.8")),
    like("hard", steps=2, loss=(3.0, 0.8)),
  )
  for config in (own, hard):
    heads.main(config)
  for ours, theirs in zip(metrics_of(own), metrics_of(hard), strict=True):
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_head_goes_on_from_another(run, like, final_state):
  """One step of rate 0 leaves it as it was."""
  config = like("on", steps=1, init=f"{run.out}/model")
  heads.main(config)
  model = specjax.load(run.model)
  start = checkpoint.load(f"{run.out}/model", model.config).params
  jax.tree.map(np.testing.assert_array_equal, final_state(config.out)["params"], start["params"])
  assert metrics_of(config)[0]["loss"] < 0.7 * metrics_of(run)[0]["loss"]
  with pytest.raises(
    ValueError,
    match=("`init` must hold a head of this shape and vocabulary, got one of another in"),
  ):
    heads.main(like("other", init=config.init, head=MedusaConfig(2)))


def test_given_answers_take_the_place_of_the_targets(run, tmp_path):
  config = changed(
    run, out=str(tmp_path), answer_field="answer", questions=40, steps=1, max_new_tokens=1
  )
  heads.main(config)
  assert not (tmp_path / "answers.jsonl").exists()
  assert report_of(config)["hit_rates"]
  model, records = specjax.load(run.model), read_jsonl(run.data)[:40]
  said, whole = Counter(), Counter()
  parts = heads.texts(model, config, "medusa", tmp_path)
  for rows in parts:
    for r, segment in enumerate(rows.segment):
      for s in range(segment.max() + 1):
        ids, trained = rows.tokens[r][segment == s], rows.mask[r][segment == s]
        whole[model.tokenizer.inner.decode(ids.tolist(), skip_special_tokens=False)] += 1
        said[model.tokenizer.inner.decode(ids[trained].tolist(), skip_special_tokens=False)] += 1
  texts = [f"Question: {x['question']}\nAnswer: {x['answer']}<|end|>" for x in records]
  assert whole == Counter(texts)
  assert said == Counter(f" {x['answer']}<|end|>" for x in records)
  held_out, cut = parts[1], run.held_out
  kept = sum(1 + segment.max() for segment in held_out.segment)
  assert kept == cut
  with pytest.raises(ValueError, match="record 1 has no text in field 'reply'"):
    heads.main(changed(config, out=str(tmp_path / "x"), answer_field="reply"))


@pytest.mark.slow
def test_a_reduced_vocabulary_is_the_most_frequent_of_the_answers(run, like):
  config = like("few", draft_vocab=4)
  heads.main(config)
  answers = read_jsonl(f"{run.out}/answers.jsonl")[run.held_out :]
  counts = Counter(i for a in answers for i in a["answer"])
  best = sorted(counts, key=lambda i: (-counts[i], i))[:4]
  loaded = checkpoint.load(f"{config.out}/model", specjax.load(run.model).config)
  assert loaded.params["vocabulary"].tolist() == sorted(best)
  assert loaded.params["params"]["lm_head"].shape[1] == 4 < len(counts)
  assert max(map(max, loaded.choices)) < 4 == loaded.hit_rates.shape[1]
  assert_decodes_like_plain(config)


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"head": MedusaConfig(2)}, r"head={'name': 'medusa', 'depth': 3.* \(now .*'depth': 2.*\)"),
    ({"temperature": 0.5}, r"temperature=0.0 \(now 0.5\)"),
    ({"questions": 150}, r"data_digest=.* questions=4000 \(now 150\)"),
  ],
)
def test_other_settings_do_not_continue_a_run(run, change, words):
  with pytest.raises(ValueError, match=f"holds a run with {words}"):
    heads.main(changed(run, **change))


@pytest.mark.parametrize(
  ("change", "words"),
  [
    (
      {"held_out": 160, "answer_field": "answer"},
      "`held_out` must be at least 1 and less than 160, the questions that fit the model, "
      r"got 160\.",
    ),
    (
      {"online": True, "layers": (0,)},
      r"`features` and `layers` must be left out with online=True, which keeps no states\.",
    ),
  ],
)
def test_what_cannot_be_trained_is_refused_before_answering(tiny_heads, tmp_path, change, words):
  with pytest.raises(ValueError, match=words):
    heads.main(changed(tiny_heads, out=str(tmp_path), **change))
  assert not (tmp_path / "answers.jsonl").exists()


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"layers": (0,)}, r"were computed with layers=\[\] \(now \[0\]\): choose another directory"),
    ({"seed": 1, "held_out": 25}, "were computed with rows="),
  ],
)
def test_what_cannot_be_trained_is_refused(like, change, words):
  with pytest.raises(ValueError, match=words):
    heads.main(like("out", **change))


def test_answers_of_a_run_with_more_questions_serve_fewer(run, tmp_path):
  model = specjax.load(run.model)
  found = [Asked(ids) for ids in ask(model, run)]
  few = changed(run, answers=str(tmp_path / "few.jsonl"))
  lines = pathlib.Path(run.out, "answers.jsonl").read_text().splitlines(keepends=True)
  pathlib.Path(few.answers).write_text("".join(lines[::-1]))
  assert answered(model, found[:9], few) == answered(model, found, few)[:9]
  assert len(pathlib.Path(few.answers).read_text().splitlines()) == len(found)


def test_answers_to_other_questions_are_refused(run, like, tmp_path):
  lines = pathlib.Path(run.out, "answers.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  records[3]["number"], records[4]["number"] = records[4]["number"], records[3]["number"]
  other = tmp_path / "other.jsonl"
  other.write_text("".join(json.dumps(record) + "\n" for record in records))
  with pytest.raises(ValueError, match="answers another question in line 4: choose another file"):
    heads.main(dataclasses.replace(like("out"), answers=str(other)))


@pytest.mark.parametrize("answer_field", [None, "answer"])
def test_a_target_without_a_template_is_refused(tiny_heads, tmp_path, monkeypatch, answer_field):
  model = dataclasses.replace(specjax.load(tiny_heads.model), template=None)
  monkeypatch.setattr(answers, "load", lambda name, dtype, weights, template: model)
  with pytest.raises(ValueError, match="has no chat template: name one with --template"):
    heads.main(changed(tiny_heads, out=str(tmp_path), answer_field=answer_field))


@pytest.mark.slow
def test_questions_that_fill_the_target_are_left_out(tiny_heads, tmp_path):
  data, path = tmp_path / "long.jsonl", tmp_path / "answers.jsonl"
  texts = ["3 pens and 4?", "12345 " * 30, "1234" * 10, "5 cups and 1?"]
  data.write_text("".join(json.dumps({"question": q}) + "\n" for q in texts))
  model = specjax.load(tiny_heads.model)
  config = changed(tiny_heads, data=str(data), questions=100, answers=str(path))
  prompts = ask(model, config)
  assert prompts == [model.chat(texts[i]) for i in (0, 2, 3)]
  assert ask(model, changed(config, questions=3)) == prompts[:2]
  answered(model, [Asked(ids) for ids in prompts], config)
  sizes = [len(r["prompt"]) + len(r["answer"]) for r in read_jsonl(path)]
  assert len(sizes) == len(open_source(str(data))) - 1
  assert max(sizes) <= model.config.max_length


def parse(*words) -> heads.Config:
  required = ("--model", "m", "--data", "d", "--out", "o")
  return tyro.cli(
    heads.Config, args=[*required, *words], config=(tyro.conf.OmitSubcommandPrefixes,)
  )


def test_the_last_word_is_the_head_and_medusa_the_default():
  assert parse() == heads.Config("m", "d", "o")
  assert parse("--steps", "7", "medusa", "--depth", "2").head == MedusaConfig(2)
  assert parse("--loss", "1", "0", "0", "0.8", "hydra").loss == (1.0, 0.0, 0.0, 0.8)
  for name, (_, kind) in HEADS.items():
    assert parse(name).head == kind()
