"""Trains the head of judge decoding for a frozen target.

    python -m specjax.train.judge --model gsm8k-7m --data gsm8k_train.jsonl --out runs/judge

The reference answers of `data` are marked token by token (see `marked` for what counts as right and
wrong: it is not the published data). Of the held-out questions the first half decides which step's
weights are kept, the second is reported. The same command again continues a run that was killed.
"""

import dataclasses
import json
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array

from specjax.checkpoints import judge as checkpoint
from specjax.data.packing import pack
from specjax.decoding.model import load
from specjax.train.recipe.answers import given
from specjax.train.recipe.fit import adamw, batches, fit
from specjax.train.recipe.judge_labels import JudgeLabels, mark
from specjax.train.recipe.resume import claim
from specjax.verifiers.judge import Judge, probability


@dataclasses.dataclass(frozen=True)
class Config:
  """A judge for a target.

  Attributes:
    model: the target, a zoo name or directory.
    data: JSONL file or tfds:NAME:SPLIT with questions and answers in the manner of GSM8K.
    out: directory for checkpoints, metrics, report.json and the judge, in `model`.
    field: of a record, the question.
    answer_field: of a record, the reference answer.
    questions: how many, from the start of the data.
    held_out: how many of these, the first, choose and measure.
    top_k: words are replaced by others among so many.
    temperature: of the distribution that replacements are drawn from.
    length: T of the rows that the target reads.
    batch: tokens per step.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    save_every: steps between checkpoints.
    seed: of the replacements and the data order.
  """

  model: str
  data: str
  out: str
  field: str = "question"
  answer_field: str = "answer"
  questions: int = 1000
  held_out: int = 100
  top_k: int = 20
  temperature: float = 1.0
  length: int = 384
  batch: int = 2048
  steps: int = 1500
  rate: float = 1e-2
  warmup: int = 50
  save_every: int = 500
  seed: int = 0


class Batch(NamedTuple):
  """Tokens of a step.

  Attributes:
    hidden: [P, E].
    right: bool[P].
  """

  hidden: np.ndarray
  right: np.ndarray


def loss(params: Judge, batch: Batch) -> Array:
  """Cross-entropy in nats, right and wrong tokens counting the same: f32[]."""
  hidden, right = jnp.asarray(batch.hidden, jnp.float32), jnp.asarray(batch.right)
  score = jnp.einsum("pe,e->p", hidden, params.w) + params.b[None]
  each = optax.sigmoid_binary_cross_entropy(score, right.astype(jnp.float32))

  def mean(of: Array) -> Array:
    return jnp.where(of, each, 0.0).sum() / jnp.maximum(of.sum(), 1).astype(jnp.float32)

  return (mean(right) + mean(~right)) / 2


def area(score: np.ndarray, right: np.ndarray) -> float:
  """AUC: how often a right token f[P] scores above a wrong one, half where they are equal."""
  _, place, count = np.unique(score, return_inverse=True, return_counts=True)
  rank = (np.cumsum(count) - (count - 1) / 2)[place]
  n, m = int(right.sum()), int((~right).sum())
  return float((rank[right].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def measure(params: Judge, tokens: JudgeLabels, thresholds: tuple[float, ...]) -> dict:
  """AUC, precision and recall of "right", and how much that is wrong passes."""
  score = np.asarray(probability(params, jnp.asarray(tokens.hidden)))
  report: dict = {"right": int(tokens.right.sum()), "wrong": int((~tokens.right).sum()),
            "auc": round(area(score, tokens.right), 4)}  # fmt: skip
  for t in thresholds:
    said = score > t
    hit = int((said & tokens.right).sum())
    report[f"threshold {t:g}"] = {
      "precision": round(hit / max(int(said.sum()), 1), 4),
      "recall": round(hit / max(report["right"], 1), 4),
      "wrong_passed": round(int((said & ~tokens.right).sum()) / max(report["wrong"], 1), 4),
    }
  return report


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  model = load(config.model)
  fields = (config.field, config.answer_field)
  documents = given(model, config.data, fields, config.questions)
  if not 2 <= config.held_out < len(documents):
    raise ValueError(f"held_out={config.held_out}: accepted is at least 2 and fewer than the "
                     f"{len(documents)} questions there are.")  # fmt: skip
  claim(out, dataclasses.asdict(config), json.dumps([ids for ids, _ in documents]).encode())
  half, cut = config.held_out // 2, config.held_out
  train, chooses, test = (
    mark(
      model, pack(part, config.length), top_k=config.top_k, temperature=config.temperature,
      seed=config.seed,
    )
    for part in (documents[cut:], documents[:half], documents[half:cut])
  )  # fmt: skip

  watched = jax.device_put(Batch(chooses.hidden, chooses.right))
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup, decay=0.0)
  params = Judge(jnp.zeros(model.config.width), jnp.zeros(()))
  state = {
    "params": params, "optimizer": optimizer.init(params),
    "best": params, "best_loss": jnp.float32(jnp.inf),
  }  # fmt: skip

  @jax.jit
  def step(state, batch: Batch):
    value, grads = jax.value_and_grad(loss)(state["params"], batch)
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    held_out = loss(params, watched)
    # Early stopping: the run goes on, the best weights stay.
    better = held_out < state["best_loss"]
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), params, state["best"])
    state = {
      "params": params, "optimizer": moments, "best": best,
      "best_loss": jnp.minimum(held_out, state["best_loss"]),
    }  # fmt: skip
    return state, {
      "loss": value, "held_out": held_out, "gradient_norm": optax.tree.norm(grads),
    }  # fmt: skip

  batch = batches(Batch(train.hidden, train.right), config.batch, config.seed)
  state = fit(step, state, batch, steps=config.steps, directory=out, save_every=config.save_every)

  thresholds = (0.5, 0.9)
  numbers = JudgeLabels(*(x[test.number] for x in test))
  report = {
    "trained_on": {"right": int(train.right.sum()), "wrong": int((~train.right).sum())},
    "best_held_out_loss": round(float(state["best_loss"]), 4),
    "tokens": measure(state["best"], test, thresholds),
    "numbers": measure(state["best"], numbers, thresholds),
  }
  (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
  print(json.dumps(report, indent=2))
  checkpoint.save(out / "model", state["best"], base=config.model)


if __name__ == "__main__":
  main(tyro.cli(Config, prog="python -m specjax.train.judge", description=__doc__))
