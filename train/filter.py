"""Trains the filter of the policy "learned" for a frozen denoiser, in minutes on a CPU.

    python -m specjax.train.filter --model lists-3m --data my.jsonl --out runs/filter

The model answers the questions of `data` one slot per pass. Then it is watched while only what
agrees with these answers is committed: the filter learns to tell, from the confidences of a block's
slots, which of them are final. Prompts, not records, are held out: half of these decide which
step's weights are kept and where the threshold lies, the other half is reported. Learn2PD (Bao et
al. 2025, arXiv 2509.25188). The same command again continues a run that was killed.

Letters: S records, W window, H hidden width.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax import script
from specjax.checkpoints import parts
from specjax.diffusion.policies import Filter
from specjax.diffusion.policies.learned import logits
from specjax.train.recipe import answers, calibration, losses, run
from specjax.train.recipe.answers import ask, check_held_out, teacher
from specjax.train.recipe.config import Count, Share, Training
from specjax.train.recipe.fit import batches, fit
from specjax.train.recipe.traces import Trace, kept_traces


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """A filter for a denoiser.

  Attributes:
    held_out: number of these, the first, that choose and measure.
    new: number of slots after each question.
    block: W, number of slots of a block.
    hidden: H, width of the filter.
    precision: share of the held-out slots beyond the threshold that are to be final.
    answer_batch: number of prompts that are answered together.
  """

  questions: Count = 640
  held_out: Count = 128
  new: Count = 16
  block: Count = 16
  hidden: Count = 32
  precision: Share = 0.995
  answer_batch: Count = 32
  training: Training = Training(steps=2000, batch=512, rate=3e-3, decay=0.01, save_every=500)


def loss(params: Filter, batch: Trace) -> Array:
  """Mean cross-entropy over open slots, in nats: f32[]."""
  said = logits(params, jnp.asarray(batch.confidence))
  each = optax.sigmoid_binary_cross_entropy(said, jnp.asarray(batch.right).astype(jnp.float32))
  return losses.mean(each, jnp.asarray(batch.open).astype(jnp.float32))


def new_filter(key: Array, window: int, hidden: int) -> Filter:
  """A filter with random weights, whose `least` is f32[] 0.96."""
  into, out = jax.random.split(key)
  return Filter(
    jax.random.normal(into, (hidden, window)) / window**0.5, jnp.zeros(hidden),
    jax.random.normal(out, (window, hidden)) / hidden**0.5, jnp.zeros(window), jnp.float32(0.96),
  )  # fmt: skip


def said(params: Filter, trace: Trace) -> np.ndarray:
  """The filter's probabilities f[P] of the open slots."""
  return np.asarray(jax.nn.sigmoid(logits(params, jnp.asarray(trace.confidence))))[trace.open]


def main(config: Config) -> None:
  out = run.begin(config)
  model = teacher(config.model, causal=False)
  prompts = ask(model, config)
  check_held_out(config.held_out, len(prompts), least=2)
  run.claim(out, config, prompts)
  trace, share = kept_traces(
    out / "traces.npz", model, prompts, config.new, config.block, config.answer_batch
  )
  half, cut = config.held_out // 2, config.held_out
  train, chooses, test = (
    Trace(*(x[(trace.prompt >= low) & (trace.prompt < high)] for x in trace))
    for low, high in ((cut, len(prompts)), (0, half), (half, cut))
  )

  best = fit(
    lambda params, _, batch, key: (loss(params, batch), {}),
    new_filter(jax.random.key(config.training.seed), config.block, config.hidden),
    batches(train, config.training), config.training, out,
    held_out=chooses,
  )  # fmt: skip

  least = calibration.threshold(said(best, chooses), chooses.right[chooses.open], config.precision)
  passing = calibration.passing(said(best, test) > least, test.right[test.open])
  run.report(out, {
    "parameters": sum(x.size for x in jax.tree.leaves(best)) - 1,
    "oracle_passes_over_one_by_one": round(share, 4),
    "best_held_out_loss": round(float(loss(best, chooses)), 4),
    "threshold": round(least, 4),
    "held_out": passing | {"slots": int(test.open.sum())},
  })  # fmt: skip
  parts.save(out / "model", best._replace(least=jnp.float32(least)), base=config.model)


if __name__ == "__main__":
  sys.exit(script.run(main, Config, __doc__, prog="python -m specjax.train.filter"))
