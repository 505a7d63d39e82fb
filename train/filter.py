"""Trains the filter of the policy "learned" for a frozen denoiser: minutes on a CPU.

    python -m specjax.train.filter --model lists-3m --data my.jsonl --out runs/filter

The model answers the questions of `data` one slot per pass. Then it is watched while only what
agrees with these answers is committed: the filter learns to tell, from the confidences of a block's
slots, which of them are final. Prompts, not records, are held out: half of these choose which
step's weights are kept and the threshold, the other half is reported. Learn2PD (Bao et al. 2025,
arXiv 2509.25188). The same command again continues a run that was killed.

Letters: S records, W window, H hidden width.
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

from specjax.checkpoints import filter as checkpoint
from specjax.decoding.model import load
from specjax.diffusion.policies import Filter
from specjax.diffusion.policies.learned import logits
from specjax.train.recipe.answers import ask
from specjax.train.recipe.fit import adamw, batches, fit
from specjax.train.recipe.resume import claim
from specjax.train.recipe.traces import Trace, collect


@dataclasses.dataclass(frozen=True)
class Config:
  """A filter for a denoiser.

  Attributes:
    model: the denoiser, a zoo name or directory.
    data: JSONL file or tfds:NAME:SPLIT with questions.
    out: directory for checkpoints, metrics, report.json and the filter, in `model`.
    field: of a record, the question.
    questions: how many, from the start of the data.
    held_out: how many of these, the first, choose and measure.
    new: slots after each question.
    block: W.
    hidden: H.
    precision: of the held-out slots that the threshold lets pass, so many are to be final.
    answer_batch: prompts answered together.
    batch: records per step.
    steps: of the optimiser.
    rate: the highest, after warm-up; it falls to a tenth along a cosine.
    warmup: steps in which the rate rises.
    save_every: steps between checkpoints.
    seed: of the weights and the data order.
  """

  model: str
  data: str
  out: str
  field: str = "question"
  questions: int = 640
  held_out: int = 128
  new: int = 16
  block: int = 16
  hidden: int = 32
  precision: float = 0.995
  answer_batch: int = 32
  batch: int = 512
  steps: int = 2000
  rate: float = 3e-3
  warmup: int = 50
  save_every: int = 500
  seed: int = 0


class Batch(NamedTuple):
  """Fields of `Trace`, S records each."""

  confidence: np.ndarray
  right: np.ndarray
  open: np.ndarray


def loss(params: Filter, batch: Batch) -> Array:
  """Mean cross-entropy over open slots, in nats: f32[]."""
  said = logits(params, jnp.asarray(batch.confidence))
  each = optax.sigmoid_binary_cross_entropy(said, jnp.asarray(batch.right).astype(jnp.float32))
  open_ = jnp.asarray(batch.open)
  return jnp.where(open_, each, 0.0).sum() / jnp.maximum(open_.sum(), 1).astype(jnp.float32)


def new_filter(key: Array, window: int, hidden: int) -> Filter:
  """Random weights; `least` is f32[] 0.96."""
  into, out = jax.random.split(key)
  return Filter(
    jax.random.normal(into, (hidden, window)) / window**0.5, jnp.zeros(hidden),
    jax.random.normal(out, (window, hidden)) / hidden**0.5, jnp.zeros(window), jnp.float32(0.96),
  )  # fmt: skip


def calibrate(said: np.ndarray, right: np.ndarray, precision: float) -> float:
  """The least threshold above which `precision` of the slots are right; the highest if none is.

  Args:
    said: f[P], probabilities.
    right: bool[P].
  """
  order = np.argsort(-said, kind="stable")
  share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
  # Slots of equal probability pass together.
  last = np.append(said[order][1:] != said[order][:-1], True)
  good = np.flatnonzero((share >= precision) & last)
  at = said[order][good[-1]] if len(good) else said.max()
  return float(np.nextafter(np.float32(at), np.float32(0)))


def measure(params: Filter, trace: Trace, least: float) -> dict:
  """What passes the threshold, of the open slots."""
  said = np.asarray(jax.nn.sigmoid(logits(params, jnp.asarray(trace.confidence))))
  passed = (said > least) & trace.open
  right = trace.right & trace.open
  hit = int((passed & right).sum())
  return {
    "precision": round(hit / max(int(passed.sum()), 1), 4),
    "recall": round(hit / max(int(right.sum()), 1), 4),
    "slots": int(trace.open.sum()),
  }


def main(config: Config) -> None:
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  model = load(config.model)
  prompts = ask(model, config.data, config.field, config.questions)
  claim(out, dataclasses.asdict(config), json.dumps(prompts).encode())
  if not 2 <= config.held_out < len(prompts):
    raise ValueError(f"held_out={config.held_out}: accepted is at least 2 and fewer than the "
                     f"{len(prompts)} questions there are.")  # fmt: skip
  file = out / "traces.npz"
  if not file.exists():
    trace, share = collect(model, prompts, config.new, config.block, config.answer_batch)
    unfinished = file.with_suffix(".tmp.npz")
    np.savez(unfinished, share=share, **trace._asdict())
    unfinished.replace(file)
  with np.load(file) as arrays:
    trace, share = Trace(*(arrays[name] for name in Trace._fields)), float(arrays["share"])
  half, cut = config.held_out // 2, config.held_out
  train, chooses, test = (
    Trace(*(x[(trace.prompt >= low) & (trace.prompt < high)] for x in trace))
    for low, high in ((cut, len(prompts)), (0, half), (half, cut))
  )

  watched = jax.device_put(Batch(*chooses[:3]))
  optimizer = adamw(config.rate, config.steps, warmup=config.warmup, decay=0.01)
  params = new_filter(jax.random.key(config.seed), config.block, config.hidden)
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

  batch = batches(Batch(*train[:3]), config.batch, config.seed)
  state = fit(step, state, batch, steps=config.steps, directory=out, save_every=config.save_every)

  best = state["best"]
  said = np.asarray(jax.nn.sigmoid(logits(best, jnp.asarray(chooses.confidence))))
  least = calibrate(said[chooses.open], chooses.right[chooses.open], config.precision)
  report = {
    "parameters": sum(x.size for x in jax.tree.leaves(best)) - 1,
    "oracle_passes_over_one_by_one": round(share, 4),
    "best_held_out_loss": round(float(state["best_loss"]), 4),
    "threshold": round(least, 4),
    "held_out": measure(best, test, least),
  }
  (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
  print(json.dumps(report, indent=2))
  checkpoint.save(out / "model", best._replace(least=jnp.float32(least)), base=config.model)


if __name__ == "__main__":
  main(tyro.cli(Config, prog="python -m specjax.train.filter", description=__doc__))
