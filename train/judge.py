"""Trains the head of judge decoding for a frozen target.

    python -m specjax.train.judge --model gsm8k-7m --data gsm8k_train.jsonl --out runs/judge

Every token of the reference answers of `data` is marked as right or wrong: by a rule for sums, see
`recipe.judge_labels`, or with `--marked` as the records say, see `recipe.judge_marks`. The first
half of the held-out questions decides which step's weights are kept, and the second is reported.
The same command again continues a run that was killed.
"""

import dataclasses
import functools
import itertools
import sys

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax import distributed
from specjax.checkpoints import parts as files
from specjax.data.sources import open_source
from specjax.train.recipe import (
  answers,
  calibration,
  judge_marks,
  labels,
  losses,
  means,
  options,
  run,
)
from specjax.train.recipe.config import Count, Length, Positive, Training
from specjax.train.recipe.fit import batches, fit
from specjax.train.recipe.judge_labels import JudgeLabels, mark
from specjax.verifiers.judge import Judge, probability


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """A judge for a target.

  Attributes:
    answer_field: name of the reference answer in a record.
    marked: whether the records say which tokens are wrong.
    held_out: number of questions, the first, that choose and measure.
    top_k: number of the likeliest tokens from which the rule draws the replacement of a word.
    temperature: temperature of the distribution from which it draws.
    length: T of the rows that the target reads.
  """

  answer_field: str = "answer"
  marked: bool = False
  questions: Count = 1000
  held_out: Count = 100
  top_k: Count = 20
  temperature: Positive = 1.0
  length: Length = 384
  training: Training = Training(steps=1500, batch=2048, rate=1e-2, save_every=500)


def terms(params: Judge, batch: JudgeLabels) -> list[means.Mean]:
  """Cross-entropy in nats of right and of wrong tokens, which count the same in the loss."""
  hidden, right = jnp.asarray(batch.hidden, jnp.float32), jnp.asarray(batch.right)
  score = jnp.einsum("pe,e->p", hidden, params.w) + params.b[None]
  label = right.astype(jnp.float32)
  each = optax.sigmoid_binary_cross_entropy(score, label)
  return [means.over(x, losses.mean(each, x) / 2) for x in (label, 1 - label)]


def loss(params: Judge, batch: JudgeLabels) -> Array:
  """The sum of `terms`, f32[]."""
  return means.added(means.values(terms(params, batch)))


def measure(params: Judge, tokens: JudgeLabels) -> dict:
  """AUC; at two thresholds precision and recall of "right", and the share of wrong that pass."""
  score, right = np.asarray(probability(params, jnp.asarray(tokens.hidden))), tokens.right
  wrong, area = int((~right).sum()), round(calibration.area(score, right), 4)
  at = {
    f"threshold {t:g}": calibration.passing(score > t, right)
    | {"wrong_passed": round(int((score[~right] > t).sum()) / max(wrong, 1), 4)}
    for t in (0.5, 0.9)
  }
  return {"right": int(right.sum()), "wrong": wrong, "auc": area, **at}


def judgeable(part: str, tokens: JudgeLabels) -> JudgeLabels:
  """The tokens; ValueError where all of them are right, or all wrong: nothing tells these apart."""
  right, wrong = int(tokens.right.sum()), int((~tokens.right).sum())
  if not right or not wrong:
    raise ValueError(
      f"{part} must have right and wrong tokens, got {right} right and {wrong} wrong."
    )
  return tokens


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True, template=config.template)
  labels.check_length(config.length, model)
  if config.marked:
    source = open_source(config.data)
    records = [
      judge_marks.marked(model, source[i], i, config.field, config.answer_field)
      for i in range(min(config.questions, len(source)))
    ]
    content = [[(ids, wrong) for (ids, _), wrong in record] for record in records]
    texts = [[document for document, _ in record] for record in records]
    label = functools.partial(judge_marks.states, model, length=config.length)
  else:
    if config.top_k > model.config.vocab_size:
      raise ValueError(
        f"`top_k` must be between 1 and {model.config.vocab_size}, got {config.top_k}."
      )
    records = answers.given(model, config, config.answer_field)
    content = [ids for ids, _ in records]
    texts = [[document] for document in records]
    label = functools.partial(
      mark,
      model,
      top_k=config.top_k,
      temperature=config.temperature,
      length=config.length,
      seed=config.training.seed,
    )
  answers.check_held_out(config.held_out, len(records), least=2)
  half, cut = config.held_out // 2, config.held_out
  parts = {
    labels.TRAIN: slice(cut, None),
    "held_out to choose": slice(half),
    "held_out to measure": slice(half, cut),
  }
  rows = {
    name: labels.packed(name, list(itertools.chain(*texts[part])), config.length)
    for name, part in parts.items()
  }
  answers.check_batch(config.training.batch, 2 * int(rows[labels.TRAIN].mask.sum()))
  run.claim(out, config, content, model.ingredients())
  train, chooses, test = (judgeable(name, label(records[part])) for name, part in parts.items())

  best = fit(
    lambda params, _, batch, key: (terms(params, batch), {}),
    Judge(jnp.zeros(model.config.width), jnp.zeros(())),
    batches(train, config.training, again=True),
    config.training,
    out,
    held_out=chooses,
  )

  run.report(
    out,
    {
      "trained_on": {"right": int(train.right.sum()), "wrong": int((~train.right).sum())},
      "best_held_out_loss": round(float(loss(best, chooses)), 4),
      "tokens": measure(best, test),
      "numbers": measure(best, JudgeLabels(*(x[test.number] for x in test))),
    },
  )
  if distributed.first():
    files.save(out / "model", best, base=model.identity)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.judge"))
