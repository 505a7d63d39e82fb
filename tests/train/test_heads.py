"""Medusa heads: what they are told to say, from what, and how their hits are counted."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.checkpoints import medusa as checkpoint
from specjax.data.packing import Rows, pack
from specjax.drafters.medusa import MedusaConfig, MedusaHeads
from specjax.models.transformer import Transformer, attention_mask
from specjax.train import heads


def random_rows(seed: int, length: int = 20) -> Rows:
  rng = np.random.default_rng(seed)
  documents = [
    (rng.integers(1, 50, n).tolist(), (rng.random(n) < 0.6).tolist())
    for n in rng.integers(1, length + 5, 9)
  ]
  return pack(documents, length)


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_head_targets_are_those_of_a_plain_loop(ahead):
  rows = random_rows(ahead)
  labels, weight = map(np.asarray, heads.head_targets(rows, ahead))
  B, T = rows.tokens.shape
  expected = np.zeros((B, T), bool)
  for b in range(B):
    for t in range(T):
      wanted = t + 1 + ahead  # t says token t + 1 through the LM head
      if wanted < T and rows.segment[b, t] == rows.segment[b, wanted] and rows.mask[b, wanted]:
        expected[b, t] = True
        assert labels[b, t] == rows.tokens[b, wanted]
  np.testing.assert_array_equal(weight, expected)
  assert expected.any() and not expected.all()


def test_examples_are_the_trained_positions_and_the_targets_states(lm_run):
  model = specjax.load(f"{lm_run.out}/model")
  rows = random_rows(0)
  examples = heads.collect(model, rows, 2, batch=3)  # the last batch is not full
  assert len(rows.tokens) % 3
  hidden, _ = Transformer(model.config).apply(
    model.params, rows.tokens, rows.position, attention_mask(jnp.asarray(rows.segment), True)
  )
  labels, weight = zip(*(heads.head_targets(rows, d) for d in (1, 2)), strict=True)
  kept = np.any(weight, 0)
  np.testing.assert_allclose(examples.hidden, np.asarray(hidden)[kept], rtol=2e-3, atol=2e-3)
  np.testing.assert_array_equal(examples.labels, np.stack(labels, -1)[kept])
  np.testing.assert_array_equal(examples.weight, np.stack(weight, -1)[kept])


def random_predictions(P: int = 40, V: int = 12, D: int = 3):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(D, P, V)).astype(np.float32)
  return logits, rng.integers(0, V, (P, D)).astype(np.int32), rng.random((P, D)) < 0.7


def test_loss_weighs_heads_by_depth():
  logits, labels, weight = random_predictions()
  loss, metrics = heads.loss_fn([*map(jnp.asarray, logits)], labels, jnp.asarray(weight), 0.8)
  expected = 0.0
  for d in range(3):
    z = logits[d].astype(np.float64)
    nll = np.log(np.exp(z).sum(-1)) - z[np.arange(len(z)), labels[:, d]]
    expected += 0.8 ** (d + 1) * nll[weight[:, d]].mean()
    right = (z.argmax(-1) == labels[:, d])[weight[:, d]].mean()
    np.testing.assert_allclose(metrics[f"accuracy_{d + 1}"], right, rtol=1e-6)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_loss_of_a_head_without_labels_is_nothing():
  logits, labels, weight = random_predictions()
  weight[:, 1] = False
  loss, metrics = heads.loss_fn([*map(jnp.asarray, logits)], labels, jnp.asarray(weight), 1.0)
  assert np.isfinite(loss) and metrics["accuracy_2"] == 0


def test_hits_are_those_of_numpy():
  logits, labels, weight = random_predictions()
  hits = heads.count_hits([*map(jnp.asarray, logits)], labels, jnp.asarray(weight), ranks=5)
  for d in range(3):
    order = np.argsort(-logits[d], -1)[:, :5]
    expected = ((order == labels[:, d, None]) & weight[:, d, None]).sum(0)
    np.testing.assert_array_equal(hits[d], expected)


@pytest.fixture(scope="module")
def run(tiny_heads, tmp_path_factory):
  config = dataclasses.replace(tiny_heads, out=str(tmp_path_factory.mktemp("heads") / "run"))
  heads.main(config)
  return config


def read_jsonl(path) -> list[dict]:
  with open(path) as file:
    return [json.loads(line) for line in file]


def test_loss_falls_and_the_export_decodes_the_same_text_in_fewer_forwards(run):
  metrics = read_jsonl(f"{run.out}/metrics.jsonl")
  assert len(metrics) == run.steps
  assert metrics[-1]["loss"] < 0.7 * metrics[0]["loss"]
  model = specjax.load(run.model)
  drafter = specjax.make_drafter(model, "medusa", head=f"{run.out}/model")
  prompts = [model.chat("3 pens and 4?"), model.chat("11 figs and 2?")]
  plain = specjax.generate(model, prompts, max_new_tokens=20)
  ours = specjax.generate(model, prompts, drafter=drafter, max_new_tokens=20)
  assert [r.tokens for r in ours] == [r.tokens for r in plain]
  assert sum(r.forwards for r in ours) < sum(r.forwards for r in plain)


def test_answers_are_the_targets_own(run):
  model = specjax.load(run.model)
  answers = read_jsonl(f"{run.out}/answers.jsonl")
  questions = read_jsonl(run.data)
  assert [a["prompt"] for a in answers] == [model.chat(q["question"]) for q in questions]
  plain = specjax.generate(model, [a["prompt"] for a in answers[40:42]], max_new_tokens=16)
  assert [a["answer"] for a in answers[40:42]] == [r.tokens for r in plain]


def test_hit_rates_are_those_of_each_document_alone(run, final_state):
  model, params = specjax.load(run.model), final_state(run.out)["params"]
  config = MedusaConfig(model.config.vocab_size, model.config.width, run.heads)
  hits, totals = np.zeros((run.heads, 10)), np.zeros(run.heads)
  for record in read_jsonl(f"{run.out}/answers.jsonl")[: run.held_out]:
    prompt, ids = record["prompt"], record["prompt"] + record["answer"]
    position = jnp.arange(len(ids))[None]
    mask = attention_mask(jnp.zeros_like(position), True)
    hidden, _ = Transformer(model.config).apply(model.params, jnp.asarray([ids]), position, mask)
    logits = MedusaHeads(config).apply(params, hidden[0])
    for d in range(run.heads):
      order = np.argsort(-np.asarray(logits[d]), -1)[:, :10]
      for t in range(len(ids) - d - 2):
        if t + d + 2 >= len(prompt):
          totals[d] += 1
          hits[d] += order[t] == ids[t + d + 2]
  with open(f"{run.out}/report.json") as file:
    report = json.load(file)
  np.testing.assert_allclose(report["hit_rates"], hits / totals[:, None], atol=0.01)
  assert [int(n) for n in report["expected_tokens_per_forward"]] == [4, 8]
  _, _, choices = checkpoint.load(f"{run.out}/model")
  assert len(choices) == run.nodes - 1


@pytest.mark.parametrize("shared", [False, True])
def test_before_training_every_head_is_the_lm_head(run, tmp_path, shared, monkeypatch, final_state):
  """One step of rate 0 (warm-up starts there) leaves the heads as they were made."""
  model = specjax.load(run.model)
  before = jax.tree.map(np.array, model.params)
  monkeypatch.setattr(heads, "load", lambda name: model)
  shutil.copy(f"{run.out}/answers.jsonl", tmp_path)
  heads.main(dataclasses.replace(run, out=str(tmp_path), steps=1, shared=shared, blocks=2))

  params = final_state(tmp_path)["params"]
  blocks = {"block_0", "bias_0", "block_1", "bias_1"}
  assert params["params"].keys() == blocks | (set() if shared else {"vocabulary"})
  assert not any(params["params"][name].any() for name in blocks)
  config = MedusaConfig(model.config.vocab_size, model.config.width, 3, 2, shared)
  hidden = jax.random.normal(jax.random.key(0), (5, model.config.width))
  lm_head = model.target.head(model.params, hidden)
  logits = MedusaHeads(config).apply(params, hidden, lambda z: model.target.head(model.params, z))
  for x in logits:
    np.testing.assert_allclose(x, lm_head, rtol=1e-5, atol=1e-5)
  for ours, theirs in zip(*map(jax.tree.leaves, (before, model.params)), strict=True):
    np.testing.assert_array_equal(ours, theirs)  # the target is frozen


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"heads": 2}, r"heads=3 \(now 2\)"),
    ({"temperature": 0.5}, r"temperature=0.0 \(now 0.5\)"),
    ({"questions": 150}, r"data_digest=.* questions=4000 \(now 150\)"),
  ],
)
def test_other_settings_do_not_continue_a_run(run, change, words):
  with pytest.raises(ValueError, match=f"holds a run with {words}"):
    heads.main(dataclasses.replace(run, **change))


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"field": "query"}, "record 1 has no text in field 'query'"),
    ({"held_out": 0}, "held_out=0: accepted is at least 1 and fewer than the 160"),
    ({"held_out": 160}, "held_out=160: accepted is at least 1"),
    ({"model": "nowhere"}, "'nowhere' is no directory"),
  ],
)
def test_what_cannot_be_trained_is_refused_before_answering(tiny_heads, tmp_path, change, words):
  with pytest.raises(ValueError, match=words):
    heads.main(dataclasses.replace(tiny_heads, out=str(tmp_path), **change))
  assert not (tmp_path / "answers.jsonl").exists()


def test_a_target_without_a_template_is_refused(tiny_heads, tmp_path, monkeypatch):
  model = dataclasses.replace(specjax.load(tiny_heads.model), template=None)
  monkeypatch.setattr(heads, "load", lambda name: model)
  with pytest.raises(ValueError, match="has no chat template: it cannot be asked questions"):
    heads.main(dataclasses.replace(tiny_heads, out=str(tmp_path)))


def test_questions_that_fill_the_target_are_left_out(tiny_heads, tmp_path):
  data = tmp_path / "long.jsonl"
  texts = ["3 pens and 4?", "12345 " * 30, "1234" * 10, "5 cups and 1?"]
  data.write_text("".join(json.dumps({"question": q}) + "\n" for q in texts))
  model = specjax.load(tiny_heads.model)
  config = dataclasses.replace(tiny_heads, data=str(data), held_out=1)
  prompts = heads.ask(model, config)
  assert prompts == [model.chat(texts[i]) for i in (0, 2, 3)]
  heads.answer(model, prompts, config, tmp_path / "answers.jsonl")
  sizes = [len(r["prompt"]) + len(r["answer"]) for r in read_jsonl(tmp_path / "answers.jsonl")]
  assert max(sizes) <= model.config.max_length
