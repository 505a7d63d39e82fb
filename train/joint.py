"""Tunes a causal model together with a draft head, which makes a NEW MODEL, and a head for it.

    python -m specjax.train.heads --model gsm8k-7m --data questions.jsonl --out runs/warm medusa
    python -m specjax.train.joint --model gsm8k-7m --data questions.jsonl --init runs/warm/model \\
        --out runs/joint

Medusa-2 (Cai et al. 2024, arXiv 2401.10774, sections 2.2.2 and 2.3.2). The first command is its
warm-up, in which the head learns alone: from scratch, a head would spoil the model. In the second,
low-rank updates of all layers learn with the head, whose loss reaches them through the states that
it reads. Decoding with the head stays exact for the new model, `model`, whose texts are not those
of the old one; the report says how far they are apart. The head is in `head`.

Letters: B batch, M drafting positions of a row, V vocabulary.
"""

import dataclasses
import math
import sys
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specjax import distributed, fingerprint
from specjax.base import Params
from specjax.checkpoints import heads as checkpoint
from specjax.checkpoints import hf
from specjax.heads import draft_vocabulary
from specjax.heads.base import LossWeights
from specjax.models import lora
from specjax.models.transformer import Transformer
from specjax.names.build.head import load_head
from specjax.names.grammar import Part
from specjax.sampling import new_key
from specjax.train.recipe import (
  answers,
  draft_positions,
  forward,
  labels,
  losses,
  means,
  options,
  run,
)
from specjax.train.recipe.config import Amount, Count, Length, Positive, Training
from specjax.train.recipe.draft_positions import Batch, Objective, PositionSource
from specjax.train.recipe.fit import fit, shuffled
from specjax.trees.static import best_first
from specjax.trees.structure import gather


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(answers.AnswersConfig):
  """A new model and its head, out of a model and a head for it.

  Attributes:
    init: zoo name or directory of the head, which has learned alone.
    rank: of the updates of the layers' matrices.
    stay: what keeps the model what it is: "teacher", the divergence from the old model's
      distribution (self-distillation), or "text", cross-entropy with its answers.
    heads_weight: of the head's loss beside that, when it has risen from 0 by a quarter of a sine.
    heads_rate: of the head's learning rate, as a multiple of `rate`, the updates' own.
    points: M, number of positions of a row from which the head drafts.
    nodes: size of the largest tree with which the head will ship.
  """

  init: str
  rank: Count = 32
  stay: Literal["teacher", "text"] = "teacher"
  heads_weight: Amount = 0.2
  heads_rate: Positive = 4.0
  points: Count = 128
  nodes: Length = 64
  training: Training = Training(rate=5e-4)


class Step(NamedTuple):
  """A batch, and the share of the training that is done, f32[B]."""

  batch: Batch
  done: np.ndarray


def risen(most: float, done: Array) -> Array:
  """The weight of the head's loss, a quarter of a sine: f32[] of the share f32[B] that is done."""
  return most * jnp.sin(math.pi / 2 * done.mean())


def distances(new: Array, old: Array, labels: Array) -> dict[str, Array]:
  """What two models' logits f32[B, M, V] say of the text's tokens i32[B, M], each f32[B, M].

  "teacher" is the divergence of the new model from the old one, "text" and "text_before" are the
  cross-entropies of both, in nats; "agreement" is 1 where both hold the same token for the best.
  """
  entropy = optax.softmax_cross_entropy_with_integer_labels
  return {
    "teacher": optax.losses.kl_divergence(jax.nn.log_softmax(new), jax.nn.softmax(old)),
    "text": entropy(new, labels),
    "text_before": entropy(old, labels),
    "agreement": (new.argmax(-1) == old.argmax(-1)).astype(jnp.float32),
  }


class Tuning:
  """What a model and its head learn together.

  `objective` is the head's, without a network of its own; `stay` and `most`, the head's weight at
  the end, are those of `Config`.
  """

  def __init__(self, network: Transformer, objective: Objective, stay: str, most: float):
    self.network, self.objective, self.stay, self.most = network, objective, stay, most

  def apart(self, old_params: Params, new: Array, batch: Batch) -> dict[str, means.Mean]:
    """The means of `distances` over a batch, from the new model's states [B, T, E]."""
    examples, weight = batch.examples, jnp.asarray(batch.weight[:, :, 0], jnp.float32)
    # A head of depth 1 guesses from `at` what the model itself says one position later.
    own = jnp.minimum(examples.at + 1, examples.tokens.shape[1] - 1)
    old = forward.read(self.network, old_params, examples).hidden
    said, wanted = (
      jnp.asarray(self.network.apply(old_params, gather(x, own), method="head")) for x in (new, old)
    )
    found = distances(said, wanted, jnp.asarray(batch.labels[:, :, 0]))
    weight = weight.reshape(-1)
    return {k: means.over(weight, losses.mean(x.reshape(-1), weight)) for k, x in found.items()}

  def loss(self, trained: Any, frozen: Any, step: Step, key: Any = None):
    """The loss in nats of a whole batch and its metrics; see `terms`."""
    terms, metrics = self.terms(trained, frozen, step, key)
    total = means.added(means.values(terms))
    return total, means.values(metrics) | {"loss": total}

  def terms(self, trained: Any, frozen: Any, step: Step, key: Any = None):
    """The terms of the loss in nats and its metrics, of {"updates": .., "head": ..} on a frozen
    (old model, what is fixed in the head)."""
    old_params, fixed = frozen
    params = lora.gate(old_params, trained["updates"], 0)
    examples = step.batch.examples
    states = forward.read(self.network, params, examples, self.objective.head.hidden_layers)
    apart = self.apart(old_params, states.hidden, step.batch)
    batch = step.batch._replace(examples=examples._replace(features=states))
    own = fixed | {"params": trained["head"]}
    # Of all terms the text's alone has a mark that does not move with the model.
    drafting, figures = self.objective.terms(own, params, batch, LossWeights())
    scale = risen(self.most, jnp.asarray(step.done))
    scaled = [x._replace(value=scale * x.value) for x in drafting]
    return [apart[self.stay], *scaled], figures | apart


@run.on_mesh
def main(config: Config) -> None:
  out, training = run.begin(config), config.training
  model = answers.teacher(config.model, causal=True, template=config.template)
  _, loaded = load_head(model, Part("head", (), config.init))
  head, network = loaded.head, Transformer(model.config)
  found = answers.asked(model, config)
  key = {"init.weights": fingerprint.of_weights(loaded.params)}
  run.claim(out, config, answers.content(found), model.ingredients() | key)
  documents = answers.parts(answers.answered(model, found, config), config.held_out)
  rows, held_out = (
    labels.packed(part, some, config.length, labels=draft_positions.first)
    for part, some in documents.items()
  )
  source, test = (
    PositionSource(part, None, head.depth, config.points, training.seed)
    for part in (rows, held_out)
  )
  ids = draft_vocabulary.ids(loaded.params)
  vocabulary = None if ids is None else np.asarray(ids)
  tuning = Tuning(network, Objective(head, vocabulary), config.stay, config.heads_weight)
  order = shuffled(len(rows.tokens), training, again=True)
  fixed = {name: x for name, x in loaded.params.items() if name != "params"}
  updates = lora.start(new_key(training.seed), model.params, config.rank)

  def step(i: int) -> Step:
    return Step(source.sample(order(i), i), np.full(training.batch, i / training.steps, np.float32))

  end = np.ones(training.batch, np.float32)
  trained = fit(
    tuning.terms,
    {"updates": updates, "head": loaded.params["params"]},
    step,
    training,
    out,
    frozen=(model.params, fixed),
    judge_every=50,
    held_out=Step(test.judged(training.batch), end),
    rates={"updates": 1.0, "head": config.heads_rate},
  )
  params, own = lora.merge(model.params, trained["updates"]), fixed | {"params": trained["head"]}

  measure, parts = jax.jit(tuning.loss), list(test.every(training.batch))
  found = [
    distributed.fetch(measure(trained, (model.params, fixed), Step(part, end))[1]) for part in parts
  ]
  shares = [part.weight[:, :, 0].sum() for part in parts]
  rates = Objective(head, vocabulary, network).rates(own, params, test, training)
  run.report(
    out,
    {
      "exactness": "a new model: its texts are not those of the old one",
      **{
        name: round(float(np.average([x[name] for x in found], weights=shares)), 4)
        for name in ("agreement", "teacher", "text", "text_before")
      },
      "hit_rates": rates.round(4).tolist(),
    },
  )
  if distributed.first():
    hf.save(
      out / "model",
      model.config,
      jax.device_get(params),
      model.tokenizer,
      template=model.template,
      stop=model.stop,
      start=model.start,
    )
    choices, base = best_first(rates, config.nodes), model.identity
    base = base._replace(name=str(out / "model"))
    checkpoint.save(out / "head", head.name, loaded.config, own, choices, rates, base=base)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.joint"))
