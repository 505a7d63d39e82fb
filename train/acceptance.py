"""Trains the head by which SpecDec++ ends a draft, for a frozen draft model and target.

    python -m specjax.train.acceptance --model gsm8k-7m --draft runs/draft/model \\
        --data questions.jsonl --out runs/my-acceptance

The target first answers the questions of `data` itself. At every token of an answer the draft model
then proposes one of its own, and the head learns with which probability the target would accept it.
The same command again continues a run that was killed. `report.json` says how far the head's
probabilities can be trusted.

Letters: B rows, T row length, P = B T tokens, E width of the draft model, V vocabulary.
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax import distributed
from specjax.base import Params
from specjax.checkpoints import parts
from specjax.data.packing import PackedRows
from specjax.draft_length.specdecpp import AcceptanceHead
from specjax.draft_length.specdecpp import labels as chances
from specjax.draft_length.specdecpp import loss as head_loss
from specjax.models.transformer import Transformer
from specjax.names.build.drafters import sharing
from specjax.names.load import load
from specjax.sampling import new_key
from specjax.train.recipe import answers, calibration, forward, labels, means, options, run
from specjax.train.recipe.config import Amount, Count, Share, Training
from specjax.train.recipe.fit import batches, fit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(answers.AnswersConfig):
  """An acceptance head for a draft model and a target.

  Attributes:
    draft: zoo name or directory of the draft model, whose vocabulary must be the target's.
    blocks: number of blocks of the head.
    mixed: share of the target's own tokens among those that the draft model reads.
    refusal: weight in the loss of a refused token; an accepted one has 1.
  """

  draft: str
  blocks: Count = 3
  mixed: Share = 0.15
  refusal: Amount = 6.0
  training: Training = Training(steps=500)


def examples(
  models: tuple[Transformer, Transformer],
  params: tuple[Params, Params],
  rows: PackedRows,
  key: Array,
  mixed: float,
) -> tuple[Array, Array, Array]:
  """What the head learns from in rows of answers, [B, T] each.

  At every token of an answer the draft model proposes a token of its own after the target's text.
  Since it reads its own tokens while it drafts, the states are those of answers in which its
  proposals replace the target's tokens, but for a share `mixed` (Huang et al. 2024, arXiv
  2405.19715, section 3.2). `models` and `params` are the target's and the draft model's; `key` is
  one, or one for each row.

  Returns:
    (states [P, E] of the proposals; f32[P], the probability that each is accepted; f32[P], 1 where
    it counts: in an answer, where it replaced the target's token).
  """
  (target, draft), (target_params, draft_params) = models, params
  keys = means.row_keys(key, len(rows.tokens))
  drawn, kept = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
  tokens, own = jnp.asarray(rows.tokens), jnp.asarray(rows.mask)

  def log_probs(model: Transformer, weights: Params) -> Array:
    state = forward.read(model, weights, rows).hidden[:, :-1]
    logits: Any = model.apply(weights, state, method="head")
    return jax.nn.log_softmax(logits.astype(jnp.float32))

  q = log_probs(draft, draft_params)
  draw = functools.partial(jax.random.categorical, mode="low")
  said = jax.vmap(draw)(drawn, q).astype(jnp.int32).reshape(-1)
  p, q = (x.reshape(-1, x.shape[-1]) for x in (log_probs(target, target_params), q))
  chance = chances(p, q, said).reshape(len(tokens), -1)
  guess = jnp.pad(said.reshape(chance.shape), ((0, 0), (1, 0)))
  noise = jax.vmap(lambda key: jax.random.uniform(key, tokens.shape[1:]))(kept)
  counts = own & (noise >= mixed)
  mixture: Any = jnp.where(counts, guess, tokens)
  states = forward.read(draft, draft_params, rows._replace(tokens=mixture)).hidden
  weight = counts.astype(jnp.float32).reshape(-1)
  return states.reshape(weight.shape[0], -1), jnp.pad(chance, ((0, 0), (1, 0))).reshape(-1), weight


def without_weight(predicted: np.ndarray, refusal: float) -> np.ndarray:
  """The probabilities f[P] of acceptance that lead to predictions f[P].

  Where refusals weigh `refusal`, the loss is least at y / (y + refusal (1 - y)) (derived).
  """
  return refusal * predicted / (refusal * predicted + 1 - predicted)


@run.on_mesh
def main(config: Config) -> None:
  out = run.begin(config)
  model = answers.teacher(config.model, causal=True, template=config.template)
  small = load(config.draft, weights="float")
  sharing(model, small, f"draft={config.draft!r}")
  if small.config.vocab_size != model.config.vocab_size:
    raise ValueError(
      f"`draft` must have the vocabulary of {model.name}, {model.config.vocab_size} tokens, got "
      f"{config.draft!r} with {small.config.vocab_size}."
    )
  if config.mixed == 1:
    raise ValueError("`mixed` must be below 1, for the head learns from the other tokens, got 1.0.")
  labels.check_length(config.length, small)
  found = answers.asked(model, config)
  both = model.ingredients() | small.ingredients("draft")
  run.claim(out, config, answers.content(found), both)
  documents = answers.parts(answers.answered(model, found, config), config.held_out)
  rows, held_out = (labels.packed(part, some, config.length) for part, some in documents.items())
  networks = Transformer(model.config), Transformer(small.config)
  frozen = model.params, small.params
  head, key = AcceptanceHead(config.blocks), new_key(config.training.seed)

  def loss(params, frozen, batch: tuple[PackedRows, Array], _):
    states, chance, counts = examples(networks, frozen, *batch, config.mixed)
    weight = counts * (chance + config.refusal * (1 - chance))
    return means.over(weight, head_loss(params, head, states, chance, counts, config.refusal)), {}

  def drawn(rows: PackedRows, key: Array) -> tuple[PackedRows, Array]:
    return rows, means.row_keys(key, config.training.batch)

  params = jax.jit(head.init)(key, jnp.zeros((1, small.config.width)))
  batch = batches(rows, config.training, again=True)
  params = fit(loss, params, batch, config.training, out, frozen=frozen, draw=drawn)

  @jax.jit
  def measure(frozen, params, rows: PackedRows, key):
    states, chance, weight = examples(networks, frozen, rows, key, config.mixed)
    logits: Any = head.apply(params, states)
    return jax.nn.softmax(logits)[:, 1], chance, weight > 0

  found, params = [], jax.device_get(params)
  for r, _, row in forward.parts(held_out, 1, "calibration"):
    beyond = jax.random.fold_in(key, config.training.steps + r)  # no step had this key
    predicted, chance, counts = map(np.asarray, measure(frozen, params, row, beyond))
    found.append((predicted[counts], chance[counts]))
  predicted, chance = (np.concatenate(x).astype(np.float64) for x in zip(*found, strict=True))
  run.report(
    out,
    {
      "tokens": len(predicted),
      "accepted": round(float(chance.mean()), 4),
      "predicted": calibration.reliability(predicted, chance),
      "without_weight": calibration.reliability(without_weight(predicted, config.refusal), chance),
    },
  )
  trained = parts.Acceptance(config.blocks, params)
  if distributed.first():
    parts.save(out / "model", trained, target=model.identity, draft=small.identity)


if __name__ == "__main__":
  sys.exit(options.command(main, Config, __doc__, prog="python -m specjax.train.acceptance"))
