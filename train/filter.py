"""Trains the filter of the policy "learned" for a frozen denoiser, in minutes on a CPU.

    python -m specjax.train.filter --model lists-3m --data my.jsonl --out runs/filter

The model answers the questions of `data` one slot per pass. It then decodes them again, while only
tokens that agree with these answers are committed, and from the confidences of a block's slots the
filter learns which of them are final: Learn2PD (Bao et al. 2025, arXiv 2509.25188). Half of the
held-out prompts decide which step's weights are kept and where the threshold lies; the other half
is reported. The same command again continues a run that was killed.
"""

import dataclasses
import sys
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax import distributed
from specjax.checkpoints import parts
from specjax.diffusion.policies.learned import Filter, logits
from specjax.sampling import new_key
from specjax.train.recipe import answers, calibration, labels, losses, means, options, run
from specjax.train.recipe.config import Bounds, Count, Share, Training
from specjax.train.recipe.fit import batches, fit
from specjax.train.recipe.traces import Trace, kept_traces, traced


@dataclasses.dataclass(frozen=True)
class Config(answers.Config):
  """A filter for a denoiser.

  Attributes:
    held_out: number of these, the first, that choose and measure.
    new: number of slots after each question.
    block: number of slots of a block, by default those of the model's own blocks, or 16.
    hidden: hidden width of the filter.
    precision: share of the held-out slots beyond the threshold that are to be final.
    answer_batch: number of prompts that are answered together.
  """

  questions: Count = 640
  held_out: Count = 128
  new: Count = 16
  block: Annotated[int | None, Bounds(1)] = None
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
  """A filter with random weights."""
  into, out = jax.random.split(key)
  return Filter(
    jax.random.normal(into, (hidden, window)) / window**0.5,
    jnp.zeros(hidden),
    jax.random.normal(out, (window, hidden)) / hidden**0.5,
    jnp.zeros(window),
    jnp.float32(0.96),
  )


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=False, template=config.template)
  prompts = answers.ask(model, config, config.new)
  answers.check_held_out(config.held_out, len(prompts), least=2)
  if len(prompts) >= config.answer_batch:  # else `traced` refuses them
    # A round fills a slot of a prompt at least, and leaves one record.
    answers.check_batch(config.training.batch, (len(prompts) - config.held_out) * config.new)
  run.claim(out, config, prompts, model.ingredients())
  prompts = traced(prompts, config.answer_batch)
  answers.check_held_out(config.held_out, len(prompts), least=2)
  block = config.block or model.config.block_length or 16
  trace, share = kept_traces(
    out / "traces.npz", model, prompts, config.new, block, config.answer_batch
  )
  half, cut = config.held_out // 2, config.held_out
  train, chooses, test = (
    Trace(*(x[(trace.prompt >= low) & (trace.prompt < high)] for x in trace))
    for low, high in ((cut, len(prompts)), (0, half), (half, cut))
  )

  for part, records in ((labels.TRAIN, train), (labels.HELD_OUT, chooses)):
    labels.counted(part, records.open)

  best = fit(
    lambda params, _, batch, key: (means.over(batch.open, loss(params, batch)), {}),
    new_filter(new_key(config.training.seed), block, config.hidden),
    batches(train, config.training, again=True),
    config.training,
    out,
    held_out=chooses,
  )

  def open_slots(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(the filter's probabilities that they are final, whether they are)."""
    probabilities = jax.nn.sigmoid(logits(best, jnp.asarray(trace.confidence)))
    return np.asarray(probabilities)[trace.open], trace.right[trace.open]

  least = calibration.threshold(*open_slots(chooses), config.precision)
  final, right = open_slots(test)
  run.report(
    out,
    {
      "parameters": optax.tree.size(best) - 1,
      "oracle_passes_over_one_by_one": round(share, 4),
      "best_held_out_loss": round(float(loss(best, chooses)), 4),
      "threshold": round(least, 4),
      "held_out": calibration.passing(final > least, right) | {"slots": len(right)},
    },
  )
  if distributed.first():
    parts.save(out / "model", best._replace(least=jnp.float32(least)), base=model.identity)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.filter"))
